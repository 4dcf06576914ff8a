"""`python -m experiments.paper lbs|headinfer [--json FILE]`; without an argument, list what there is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from experiments.paper import headinfer, lbs

COMMANDS = {
    "lbs": (lbs, "Figure 7 of Locality-aware Beam Scheduling: KV moved to the device"),
    "headinfer": (headinfer, "Tables 9-13 of HeadInfer: memory on the device"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.paper")
    commands = parser.add_subparsers(dest="command")
    for name, (_, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        command.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    arguments = parser.parse_args()
    if arguments.command is None:
        parser.print_help()
        return
    paper, _ = COMMANDS[arguments.command]
    rows = paper.rows()
    print(paper.report(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
