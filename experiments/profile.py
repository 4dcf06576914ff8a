"""The command `python -m experiments.profile`."""

from experiments.fit.profile import main

if __name__ == "__main__":
    main()
