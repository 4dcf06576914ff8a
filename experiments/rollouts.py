"""The command `python -m experiments.rollouts`."""

from experiments.eval.rollouts.command import main

if __name__ == "__main__":
    main()
