"""The command `python -m experiments.heads`."""

from experiments.fit.heads import main

if __name__ == "__main__":
    main()
