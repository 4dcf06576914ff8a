"""The command `ttc "question"`."""

from experiments.runs.ask import main

if __name__ == "__main__":
    main()
