"""The command `python -m experiments.leaderboard`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "leaderboard")

if __name__ == "__main__":
    main()
