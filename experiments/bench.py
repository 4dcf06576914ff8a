"""The command `python -m experiments.bench`."""

from experiments.lab.bench.command import main

if __name__ == "__main__":
    main()
