"""The command `ttc-serve`, also `python -m experiments.serve`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "serve")

if __name__ == "__main__":
    main()
