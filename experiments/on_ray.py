"""The command `python -m experiments.on_ray`."""

from functools import partial

from experiments.cli.command import of_part

main = partial(of_part, "on_ray")

if __name__ == "__main__":
    main()
