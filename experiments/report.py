"""The command `python -m experiments.report`."""

from experiments.lab.report.command import main

if __name__ == "__main__":
    main()
