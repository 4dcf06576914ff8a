"""The command `python -m experiments.view`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "view")

if __name__ == "__main__":
    main()
