"""`python -m experiments.compare outputs/A outputs/B ...`: runs side by side, with intervals and
tests."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.command import perform
from experiments.cli.output import say, show
from experiments.cli.tables import FORMATS
from ttc.errors import number_of

FOLDERS = (
    "folders of runs, as outputs/NAME; a folder that holds runs; or a pattern, as 'outputs/*n=4*'"
)
FORMAT = "of the tables; latex is for booktabs, csv has a column for each setting that differs"


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compare",
        description="Compare runs on the same problems. Runs that differ in the seed alone are "
        "one row; of runs that are alike in the seed, too, it says whether they gave the same "
        "answers. The first row is what the others are compared with.",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help=FOLDERS)
    parser.add_argument(
        "--labels", metavar="A,B,C", help="what the rows are called, in the order of their folders"
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help=FORMAT)
    parser.add_argument(
        "--brief", action="store_true", help="only the first table: accuracy and cost"
    )
    parser.add_argument(
        "--settings", action="store_true", help="also show every setting in which rows differ"
    )
    parser.add_argument(
        "--baseline", metavar="ROW", help="what the others are compared with: a label, or a folder"
    )
    parser.add_argument(
        "--different-problems",
        action="store_true",
        help="compare runs on other problems all the same",
    )
    parser.add_argument(
        "--different-prompts",
        action="store_true",
        help="compare runs that ask otherwise all the same",
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="a line per row, with its difference to the first"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure")
    parser.add_argument("--html", type=Path, metavar="FILE", help="one page, with the plot")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="accuracy against compute, as .png, .svg or .pdf"
    )
    return parser.parse_args(words)


def compare(arguments: argparse.Namespace) -> None:
    from experiments.eval.compare.rows import check_comparable, load_rows, with_baseline
    from experiments.eval.compare.show import comparison, csv_text, tables, write

    rows = load_rows(arguments.folders, arguments.labels and arguments.labels.split(","))
    if arguments.baseline is not None:
        rows = with_baseline(rows, arguments.baseline)
    check_comparable(rows, arguments.different_problems, arguments.different_prompts)
    figures = comparison(rows)
    if arguments.format == "csv":
        show(csv_text(figures), end="")
    else:
        chosen = tables(figures, arguments.settings)[: 1 if arguments.brief else None]
        show("\n\n".join(getattr(table, arguments.format)() for table in chosen))
    for file in write(figures, arguments.csv, arguments.json, arguments.html, arguments.plot):
        say(f"\nwritten: {file}")


def main() -> None:
    arguments = parsed()
    folders = number_of(len(arguments.folders), "folder")
    perform(lambda: compare(arguments), f"a comparison of the runs of {folders}")
