"""The command `python -m experiments.train_verifier`."""

from __future__ import annotations

import sys

from experiments.cli.command import perform


def main() -> None:
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        from experiments.cli.help import TRAIN_VERIFIER

        print(TRAIN_VERIFIER, end="")
        return
    perform(launch, f"train_verifier {' '.join(arguments)}".strip())


def launch() -> None:
    from experiments.fit.train_verifier.job import run
    from experiments.runs.configured import configured

    configured("train_verifier", run)
