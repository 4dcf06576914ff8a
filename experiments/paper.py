"""The command `python -m experiments.paper`."""

from experiments.lab.paper.command import main

if __name__ == "__main__":
    main()
