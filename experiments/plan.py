"""The command `python -m experiments.plan`."""

from experiments.runs.plan import main

if __name__ == "__main__":
    main()
