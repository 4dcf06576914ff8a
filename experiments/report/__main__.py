"""`python -m experiments.report`: write the documents' tables, and plots, from the figures in experiments/results."""

from __future__ import annotations

from experiments.command import perform


def main() -> None:
    perform(write, "report")


def write() -> None:
    from experiments.report.tables import write_all

    write_all()


if __name__ == "__main__":
    main()
