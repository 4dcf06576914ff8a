"""The command `python -m experiments.published`."""

from experiments.eval.published.command import main

if __name__ == "__main__":
    main()
