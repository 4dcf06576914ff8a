"""The command `python -m experiments.processbench`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "processbench")

if __name__ == "__main__":
    main()
