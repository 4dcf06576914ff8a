"""The command `python -m experiments.merge`."""

from experiments.eval.merge.command import main

if __name__ == "__main__":
    main()
