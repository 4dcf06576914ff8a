"""The command `python -m experiments.export`."""

from experiments.eval.export.command import main

if __name__ == "__main__":
    main()
