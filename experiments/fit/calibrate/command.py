"""The command `python -m experiments.calibrate calibrate.file=FILE`."""

from __future__ import annotations

import sys

from experiments.cli.command import perform


def main() -> None:
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        from experiments.cli.help import CALIBRATE

        print(CALIBRATE, end="")
        return
    perform(launch, " ".join(arguments) or "calibrate; --help shows the settings")


def launch() -> None:
    from experiments.fit.calibrate.job import run
    from experiments.runs.configured import configured

    configured("calibrate", lambda config, _: run(config))
