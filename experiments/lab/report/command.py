"""`python -m experiments.report`: write the documents' tables and plots from the figures in
lab/results."""

from __future__ import annotations

from experiments.cli.command import perform


def main() -> None:
    perform(write, "report")


def write() -> None:
    from experiments.lab.report.tables import write_all

    write_all()
