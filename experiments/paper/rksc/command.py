"""`python -m experiments.paper rksc PART ... [--problems N] [--held-out N] [--out FOLDER] [Hydra overrides]`.

Each part writes `rksc_PART.json`; `python -m experiments.report` makes tables and plots from these files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.bench.prefix import machine
from experiments.paper.rksc import arms, phrasings, prefix, stress, tables, verification
from experiments.paper.rksc.setting import Setting
from ttc.errors import InvalidInput

Measure = Callable[[Sequence[str], int, int], Iterable[dict[str, Any]]]
PARTS: dict[str, tuple[int, Measure]] = {
    "arms": (16, arms.run),
    "answers": (60, arms.answers),
    "prefix": (0, lambda overrides, problems, held_out: [prefix.run(overrides)]),
    "phrasings": (20, lambda overrides, problems, held_out: [phrasings.run(overrides, problems)]),
    "verification": (40, lambda overrides, problems, held_out: [verification.run(overrides, problems)]),
    "stress": (20, lambda overrides, problems, held_out: [stress.run(overrides, problems)]),
}
"""Each part: how many problems by default, and what measures it. That gives what there is so far, to be saved."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all by default), or overrides")
    command.add_argument("--problems", type=int, help="problems to measure; each part has its own default")
    command.add_argument("--held-out", type=int, default=24, help="problems that thresholds are found on")
    command.add_argument("--out", type=Path, default=Path("experiments/results"), help="where the figures go")


def main(arguments: argparse.Namespace) -> None:
    overrides = [word for word in arguments.parts if "=" in word]
    parts = [word for word in arguments.parts if "=" not in word] or list(PARTS)
    for part in parts:
        if part not in PARTS:
            raise InvalidInput(f"rksc has no part {part!r}; use one of {', '.join(PARTS)}")
    for name, value, least in (("problems", arguments.problems, 2), ("held-out", arguments.held_out, 2)):
        if value is not None and value < least:
            raise InvalidInput(f"--{name}={value} must be at least {least}")
    config = Setting.of("rksc_verify", overrides).config
    arguments.out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        usual, measure = PARTS[part]
        problems = arguments.problems or usual
        words = [part, *([f"--problems {problems}"] if usual else []), *overrides]
        if part in ("arms", "answers"):
            words.insert(2, f"--held-out {arguments.held_out}")
        about = {
            "command": "python -m experiments.paper rksc " + " ".join(words),
            "machine": machine(),
            "model": f"{config.model.name}, its real weights",
            "simulated": "nothing",
        }
        for found in measure(overrides, problems, arguments.held_out):
            result = about | found
            (arguments.out / f"rksc_{part}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(tables.TABLES[part](result))
