"""The command `python -m experiments.view`."""

from experiments.eval.view.command import main

if __name__ == "__main__":
    main()
