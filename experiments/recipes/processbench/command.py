"""The command `python -m experiments.processbench verifier=NAME`."""

from __future__ import annotations

import sys

from experiments.cli.command import perform_or_help


def main() -> None:
    command = " ".join(sys.argv[1:]) or "processbench; --help shows the settings"
    stopped = "stopped; every sample rated is kept\nrun the same command to go on"
    perform_or_help(launch, "processbench", command, stopped)


def launch() -> None:
    from experiments.recipes.processbench.job import run
    from experiments.runs.hydra_command import configured

    configured("processbench", lambda config, _: run(config))
