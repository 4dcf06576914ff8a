"""`python -m experiments.paper lbs|headinfer|helm|capture|rksc`; without an argument, list what there is."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from experiments.cli.command import perform
from experiments.lab.paper import headinfer, helm, lbs

FORMULAS = {
    "lbs": (lbs, "Figure 7 of Locality-aware Beam Scheduling: KV moved to the device"),
    "headinfer": (headinfer, "Tables 9-13 of HeadInfer: memory on the device"),
    "helm": (helm, "the running example and Table 6.5 of HELM: where layers run"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.paper")
    commands = parser.add_subparsers(dest="command")
    for name, (_, summary) in FORMULAS.items():
        command = commands.add_parser(name, help=summary)
        command.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    capture = commands.add_parser("capture", help="Table III of CAPTURE: the cache as KV, activations and both")
    capture.add_argument("--out", type=Path, default=Path("experiments/lab/results"), help="where the figures go")
    rksc = commands.add_parser("rksc", help="RKSC's mechanisms, each alone, measured on a real model")
    parts = "arms, answers, prefix, phrasings, verification, stress (all by default), or overrides"
    rksc.add_argument("parts", nargs="*", metavar="PART", help=parts)
    rksc.add_argument("--problems", type=int, help="problems to measure; each part has its own default")
    rksc.add_argument("--held-out", type=int, default=24, help="problems that thresholds are found on")
    rksc.add_argument("--out", type=Path, default=Path("experiments/lab/results"), help="where the figures go")
    arguments = parser.parse_args()
    if arguments.command is None:
        parser.print_help()
    elif arguments.command in ("rksc", "capture"):
        perform(lambda: measure(arguments), f"paper {' '.join(sys.argv[1:])}")
    else:
        perform(lambda: calculate(arguments), f"paper {' '.join(sys.argv[1:])}")


def calculate(arguments: argparse.Namespace) -> None:
    paper, _ = FORMULAS[arguments.command]
    rows = paper.rows()
    print(paper.report(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(arguments: argparse.Namespace) -> None:
    if arguments.command == "capture":
        from experiments.lab.paper import capture

        capture.main(arguments)
    else:
        from experiments.lab.paper.rksc import command

        command.main(arguments)
