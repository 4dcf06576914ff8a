"""The command `python -m experiments.train_verifier`."""

from __future__ import annotations

import sys

from experiments.command import perform


def main() -> None:
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        from experiments.help import TRAIN_VERIFIER

        print(TRAIN_VERIFIER, end="")
        return
    perform(launch, f"train_verifier {' '.join(arguments)}".strip())


def launch() -> None:
    from experiments.configured import configured
    from experiments.train_verifier.job import run

    configured("train_verifier", run)


if __name__ == "__main__":
    main()
