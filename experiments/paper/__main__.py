"""`python -m experiments.paper lbs|headinfer|rksc`; without an argument, list what there is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from experiments.paper import headinfer, lbs
from experiments.paper.rksc import command as rksc
from ttc.errors import TTCError

FORMULAS = {
    "lbs": (lbs, "Figure 7 of Locality-aware Beam Scheduling: KV moved to the device"),
    "headinfer": (headinfer, "Tables 9-13 of HeadInfer: memory on the device"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.paper")
    commands = parser.add_subparsers(dest="command")
    for name, (_, summary) in FORMULAS.items():
        command = commands.add_parser(name, help=summary)
        command.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    rksc.add_arguments(commands.add_parser("rksc", help="RKSC's mechanisms, each alone, measured on a real model"))
    arguments = parser.parse_args()
    if arguments.command is None:
        parser.print_help()
    elif arguments.command == "rksc":
        try:
            rksc.main(arguments)
        except TTCError as error:
            raise SystemExit(f"error: {error}") from error
    else:
        paper, _ = FORMULAS[arguments.command]
        rows = paper.rows()
        print(paper.report(rows))
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
