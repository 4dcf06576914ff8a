"""The command `python -m experiments.calibrate`."""

from experiments.fit.calibrate.command import main

if __name__ == "__main__":
    main()
