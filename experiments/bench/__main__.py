"""`python -m experiments.bench prefix [--quick] [--out FILE]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.bench import prefix


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench")
    commands = parser.add_subparsers(dest="command", required=True)
    shared = commands.add_parser("prefix", help="decoding B branches on a shared prefix, against plain transformers")
    shared.add_argument("--quick", action="store_true", help="fewer cases, the two with a target among them")
    shared.add_argument("--model", default="smollm2-135m")
    shared.add_argument("--out", type=Path, default=Path("experiments/results/prefix.json"))
    arm = commands.add_parser("arm", help="one measurement in this process (what `prefix` starts)")
    arm.add_argument("name", choices=prefix.ARMS)
    arm.add_argument("tokens", type=int)
    arm.add_argument("branches", type=int)
    arm.add_argument("model")
    arguments = parser.parse_args()
    if arguments.command == "arm":
        prefix.run_arm(arguments.name, arguments.tokens, arguments.branches, arguments.model)
    else:
        prefix.run(arguments.quick, arguments.model, arguments.out)


if __name__ == "__main__":
    main()
