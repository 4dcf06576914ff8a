"""The command `python -m experiments.select`."""

from experiments.eval.select import main

if __name__ == "__main__":
    main()
