"""`python -m experiments.paper lbs|headinfer|helm|capture|rksc`; without an argument, list what
there is."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.cli.command import perform

RESULTS = Path("experiments/lab/results")


@dataclass(frozen=True)
class Paper:
    """What the command says of a paper, as names of modules, which are imported when they are
    needed.

    exhibits: has its tables and figures. cells: has tables of another form, which are printed
    first. measures: what runs unless the command is asked for tables, rows or a plot.
    """

    summary: str
    exhibits: str
    cells: str | None = None
    measures: str | None = None


PAPERS = {
    "lbs": Paper(
        "Figures 4, 7 and 10 of Locality-aware Beam Scheduling: KV and its transfers",
        "lbs",
        cells="lbs",
    ),
    "headinfer": Paper(
        "memory, contexts and rooflines of HeadInfer", "headinfer_speed", cells="headinfer"
    ),
    "helm": Paper(
        "HELM's running example, its plans and its tables of throughput",
        "helm_tables",
        cells="helm",
    ),
    "capture": Paper(
        "Table III of CAPTURE: the cache as KV, activations and both",
        "capture_formulas",
        measures="capture",
    ),
    "rksc": Paper(
        "RKSC's mechanisms, each alone, measured on a real model",
        "rksc.latency",
        measures="rksc.command",
    ),
}


def module(name: str) -> Any:
    return import_module(f"experiments.lab.paper.{name}")


def main() -> None:
    arguments = parser().parse_args()
    if arguments.command is None:
        parser().print_help()
        return
    paper = PAPERS[arguments.command]
    shows = arguments.tables or arguments.plot or arguments.json
    if paper.measures is None or shows:
        perform(lambda: show(paper, arguments), f"paper {' '.join(sys.argv[1:])}")
    else:
        perform(
            lambda: module(str(paper.measures)).main(arguments), f"paper {' '.join(sys.argv[1:])}"
        )


def parser() -> argparse.ArgumentParser:
    papers = argparse.ArgumentParser(prog="python -m experiments.paper")
    commands = papers.add_subparsers(dest="command")
    for name, paper in PAPERS.items():
        command = commands.add_parser(name, help=paper.summary)
        command.add_argument(
            "--json", type=Path, metavar="FILE", help="also write the rows of the tables to FILE"
        )
        command.add_argument(
            "--plot",
            type=Path,
            metavar="FILE",
            help="draw the figures beside the paper's points into FILE (.png)",
        )
        about = (
            "print what formulas and stored records give, and measure nothing; so do --plot and "
            "--json"
        )
        command.add_argument("--tables", action="store_true", help=about)
        if paper.measures is not None:
            command.add_argument("--out", type=Path, default=RESULTS, help="where the figures go")
    capture = commands.choices["capture"]
    about = (
        "which points of Table III are measured; give --out as well, as a part would replace the "
        "stored record"
    )
    capture.add_argument(
        "--points", type=int, nargs="+", choices=(1, 2, 3), default=[1, 2, 3], help=about
    )
    rksc = commands.choices["rksc"]
    parts = "arms, answers, prefix, phrasings, asks, verification, stress (all by default), or overrides"
    rksc.add_argument("parts", nargs="*", metavar="PART", help=parts)
    rksc.add_argument(
        "--problems", type=int, help="problems to measure; each part has its own default"
    )
    rksc.add_argument(
        "--held-out", type=int, default=24, help="problems that thresholds are found on"
    )
    return papers


def show(paper: Paper, arguments: argparse.Namespace) -> None:
    """Print the tables, and write their rows and the plot where the command says so."""
    exhibits, rows = module(paper.exhibits).EXHIBITS, dict[str, Any]()
    if paper.cells is not None:
        rows["cells"] = module(paper.cells).rows()
        print(module(paper.cells).report(rows["cells"]) + "\n")
    print("\n\n".join(exhibit.markdown() for exhibit in exhibits))
    if arguments.json:
        rows |= {exhibit.name: exhibit.rows() for exhibit in exhibits}
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        module("exhibit").draw(exhibits, arguments.plot)
