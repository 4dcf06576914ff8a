"""`python -m experiments.merge OUT [SHARD ...]`: the shards of a run as one run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.command import perform


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.merge",
        description="Put the shards of a run (run.shard=I/N) together. What comes out is the "
        "folder of a run that one process has made.",
    )
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="the folder to write, as outputs/NAME"
    )
    parser.add_argument(
        "shards", type=Path, nargs="*", metavar="SHARD", help="(all folders OUT-shardIofN)"
    )
    return parser.parse_args(words)


def main() -> None:
    arguments = parsed()

    def work() -> None:
        from experiments.eval.merge.merging import merge

        merge(arguments.out, arguments.shards)

    perform(work, f"putting the shards of {arguments.out} together")
