"""`python -m experiments.view outputs/NAME`: a run and its search trees as one page of HTML."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.command import perform
from experiments.cli.output import show
from ttc.errors import number_of

LIMIT = 500
"""Problems on a page, unless --limit says otherwise: a browser shows a page of some 100 MB
slowly."""


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.view",
        description="Write a run as one page that needs no network and no other file: its "
        "figures, its problems, and the search tree of each, with the text of every step. Or draw "
        "results that a program has saved.",
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="the folder of a run, as outputs/NAME, or a file with what Result.to_dict returned "
        "(or a list of these)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (FOLDER/view.html, or FILE.html)"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=LIMIT,
        metavar="N",
        help=f"the most problems on the page ({LIMIT})",
    )
    parser.add_argument(
        "--problem",
        action="append",
        default=[],
        metavar="ID",
        help="only this one; may be repeated",
    )
    return parser.parse_args(words)


def view(arguments: argparse.Namespace) -> None:
    from experiments.pages.view.page import page, page_data
    from experiments.pages.view.saved import results_of, results_page
    from experiments.runs.finished import FinishedRun
    from experiments.runs.screen import as_bytes

    if arguments.folder.is_file():
        results = results_of(arguments.folder)
        text = results_page(results[: arguments.limit], arguments.folder.name)
        out = arguments.folder.with_suffix(".html")
        count = number_of(len(results), "result")
    else:
        run = FinishedRun.load(arguments.folder)
        data = page_data(run, arguments.limit, arguments.problem)
        text = page(data)
        out = arguments.folder / "view.html"
        count = f"{len(data['problems'])} of {number_of(len(run.records), 'problem')}"
    out = arguments.out or out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    show(f"{count}: {out} ({as_bytes(out.stat().st_size)})")


def main() -> None:
    arguments = parsed()
    perform(lambda: view(arguments), f"a page of {arguments.folder}")
