"""The command `python -m experiments.train_verifier`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "train_verifier")

if __name__ == "__main__":
    main()
