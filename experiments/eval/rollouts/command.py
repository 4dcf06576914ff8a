"""The command `python -m experiments.rollouts`."""

from __future__ import annotations

import sys

from experiments.cli.command import perform_or_help


def main() -> None:
    perform_or_help(launch, "rollouts", " ".join(["rollouts", *sys.argv[1:]]))


def launch() -> None:
    from experiments.eval.rollouts.job import run
    from experiments.runs.hydra_command import configured

    configured("rollouts", run)
