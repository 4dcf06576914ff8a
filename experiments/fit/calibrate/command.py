"""The command `python -m experiments.calibrate calibrate.file=FILE`."""

from __future__ import annotations

import sys

from experiments.cli.command import perform_or_help


def main() -> None:
    command = " ".join(sys.argv[1:]) or "calibrate; --help shows the settings"
    perform_or_help(launch, "calibrate", command)


def launch() -> None:
    from experiments.fit.calibrate.calibration import run
    from experiments.runs.hydra_command import configured

    configured("calibrate", lambda config, _: run(config))
