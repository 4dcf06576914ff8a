"""`python -m experiments.report`: write the documents' tables and plots from the figures in
lab/results."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.cli.command import perform
from ttc.errors import InvalidInput


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m experiments.report",
        description="Write the tables of README.md and docs/ from the figures in "
        "experiments/lab/results. Give it in the folder of a clone.",
    ).parse_args()
    perform(write, "report")


def write() -> None:
    if not Path("README.md").exists():
        raise InvalidInput(f"{Path.cwd()} has no README.md; give the command in a clone's folder")
    from experiments.lab.report.tables import write_all

    write_all()
