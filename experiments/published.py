"""The command `python -m experiments.published`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "published")

if __name__ == "__main__":
    main()
