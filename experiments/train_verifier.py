"""The command `python -m experiments.train_verifier`."""

from experiments.fit.train_verifier.command import main

if __name__ == "__main__":
    main()
