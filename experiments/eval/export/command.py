"""`python -m experiments.export outputs/NAME`: a run's trees as training data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.command import perform
from experiments.cli.output import show
from ttc.errors import number_of

TYPES = ("stepwise-supervision", "preference", "unpaired-preference", "prompt-completion")
"""TRL's names for kinds of data sets."""


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.export",
        description="Write a run's search trees as training data. jsonl and parquet hold every "
        "path from the prompt to a leaf, with token ids, log-probabilities, scores and seeds (of "
        "a run with run.record_tokens=true); trl holds texts as TRL's trainers read them.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="the folder of a run, as outputs/NAME"
    )
    parser.add_argument(
        "--format", choices=("trl", "jsonl", "parquet"), default="jsonl", help="(jsonl)"
    )
    parser.add_argument("--type", choices=TYPES, help=f"of --format trl ({TYPES[0]})")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="(FOLDER/trajectories.FORMAT or FOLDER/TYPE.jsonl)"
    )
    return parser.parse_args(words)


def export(arguments: argparse.Namespace) -> None:
    from experiments.eval.export.trajectories import trajectories, write_parquet
    from experiments.eval.export.trl import ROWS
    from experiments.runs.finished import FinishedRun
    from experiments.runs.records import as_lines
    from ttc.errors import InvalidInput

    if arguments.type is not None and arguments.format != "trl":
        raise InvalidInput(
            f"--type={arguments.type} is one of TRL's data sets; give --format trl too"
        )
    run = FinishedRun.load(arguments.folder)
    if arguments.format == "trl":
        kind = arguments.type or TYPES[0]
        rows, name = ROWS[kind](run), f"{kind}.jsonl"
    else:
        rows, name = trajectories(run), f"trajectories.{arguments.format}"
    out: Path = arguments.out or arguments.folder / name
    out.parent.mkdir(parents=True, exist_ok=True)
    if arguments.format == "parquet":
        write_parquet(rows, out)
    else:
        out.write_text(as_lines(rows), encoding="utf-8")
    show(f"{number_of(len(rows), 'row')} of {number_of(len(run.records), 'problem')}: {out}")


def main() -> None:
    arguments = parsed()
    perform(lambda: export(arguments), f"an export of {arguments.folder}")
