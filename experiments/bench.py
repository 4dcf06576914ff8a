"""The command `python -m experiments.bench`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "bench")

if __name__ == "__main__":
    main()
