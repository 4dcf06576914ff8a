"""The command `python -m experiments.leaderboard`."""

from experiments.eval.leaderboard.command import main

if __name__ == "__main__":
    main()
