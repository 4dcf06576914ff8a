"""The command `python -m experiments.report`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "report")

if __name__ == "__main__":
    main()
