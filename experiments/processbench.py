"""The command `python -m experiments.processbench`."""

from experiments.eval.processbench.command import main

if __name__ == "__main__":
    main()
