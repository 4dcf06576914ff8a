"""The command `python -m experiments.compute_optimal`."""

from experiments.fit.compute_optimal import main

if __name__ == "__main__":
    main()
