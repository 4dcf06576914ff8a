"""The command `python -m experiments.lm_eval`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "lm_eval")

if __name__ == "__main__":
    main()
