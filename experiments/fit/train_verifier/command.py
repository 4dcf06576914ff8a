"""The command `python -m experiments.train_verifier`."""

from __future__ import annotations

import sys

from experiments.cli.command import perform_or_help


def main() -> None:
    perform_or_help(launch, "train_verifier", " ".join(["train_verifier", *sys.argv[1:]]))


def launch() -> None:
    from experiments.fit.train_verifier.training import run
    from experiments.runs.hydra_command import configured

    configured("train_verifier", run)
