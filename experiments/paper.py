"""The command `python -m experiments.paper`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "paper")

if __name__ == "__main__":
    main()
