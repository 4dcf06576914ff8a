"""The command `python -m experiments.lm_eval`."""

from experiments.integrations.lm_eval import main

if __name__ == "__main__":
    main()
