"""`python -m experiments.leaderboard FILE.yaml`: run what is left of a leaderboard, and write its
rows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.command import perform
from experiments.cli.output import say, show, show_errors
from experiments.cli.tables import FORMATS
from experiments.eval.compare.command import FORMAT
from ttc.errors import number_of

EXAMPLE = """\
A file:
  name: sums                                    # its folder is outputs/sums
  models: [smollm2, Qwen/Qwen3-0.6B]
  datasets: [{dataset: sums, dataset.size: 50}]
  searches: [greedy, {search: best_of_n, search.n: 16, verifier: arithmetic}]
  budgets: [500, {run.max_generated_tokens: 2000}]   # per problem; a number is run.max_tokens
  seeds: [0, 1, 2]
  settings: {run.batch: 8}                      # of every cell
"""


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.leaderboard",
        description="Run every model with every search, budget, data set and seed, and write one "
        "row for each. The same command goes on where it was.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="what to run, as YAML")
    parser.add_argument(
        "--labels", metavar="A,B,C", help="what the rows are called, in the order of the file"
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help=FORMAT)
    parser.add_argument(
        "--dry", action="store_true", help="check every cell and print their names, and run nothing"
    )
    return parser.parse_args(words)


def leaderboard(arguments: argparse.Namespace) -> int:
    """Returns the exit code: 1 where a cell could not be run."""
    from experiments.pages.leaderboard.plan import read_plan, with_labels

    plan = read_plan(arguments.file)
    if arguments.labels is not None:
        plan = with_labels(plan, arguments.labels.split(","))
    from experiments.eval.cells import configurations, run_cells
    from experiments.pages.leaderboard.board import (
        board_rows,
        check_folder,
        csv_text,
        tables,
        write_board,
    )

    if arguments.dry:
        configurations(plan.cells)
        show("\n".join(cell.name for cell in plan.cells))
        return 0
    check_folder(plan)
    errors, refused = run_cells(plan.cells)
    rows = board_rows(plan, refused)
    if rows:
        files = write_board(plan, rows, errors)
        if arguments.format == "csv":
            show(csv_text(rows), end="")
        else:
            show("\n\n".join(getattr(table, arguments.format)() for table in tables(rows, errors)))
        say("\nwritten: " + ", ".join(map(str, files)))
    show_errors(errors, f"{number_of(len(plan.cells), 'cell')} could not be run")
    return int(bool(errors))


def main() -> None:
    arguments = parsed()
    stopped = "stopped; every problem done is kept\nrun the same command to go on"
    perform(lambda: leaderboard(arguments), str(arguments.file), stopped)
