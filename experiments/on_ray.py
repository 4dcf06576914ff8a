"""The command `python -m experiments.on_ray`."""

from experiments.integrations.on_ray import main

if __name__ == "__main__":
    main()
