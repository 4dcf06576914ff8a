"""The command `python -m experiments.compare`."""

from experiments.eval.compare.command import main

if __name__ == "__main__":
    main()
