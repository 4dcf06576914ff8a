"""`python -m experiments.paper rksc PART ... [--problems N] [--held-out N] [--out FOLDER] [Hydra
overrides]`.

Each part writes `rksc_PART.json`, from which `python -m experiments.report` makes tables and plots;
another model than the default one's figures go to `rksc_PART-MODEL.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from experiments.lab.paper.rksc import arms, asks, phrasings, prefix, stress, tables, verification
from experiments.lab.paper.rksc.setting import Setting
from experiments.runs.provenance import provenance
from ttc.errors import InvalidInput

Measure = Callable[[Sequence[str], int, int], Iterable[dict[str, Any]]]
PARTS: dict[str, tuple[int, Measure]] = {
    "arms": (16, arms.run),
    "answers": (200, arms.answers),
    "prefix": (0, lambda overrides, problems, held_out: [prefix.run(overrides)]),
    "phrasings": (20, lambda overrides, problems, held_out: [phrasings.run(overrides, problems)]),
    "asks": (3, lambda overrides, problems, held_out: asks.run(overrides, problems)),
    "verification": (
        40,
        lambda overrides, problems, held_out: [verification.run(overrides, problems, held_out)],
    ),
    "stress": (20, lambda overrides, problems, held_out: [stress.run(overrides, problems)]),
}
"""Each part: how many problems by default, and what measures it. That gives what there is so far,
to be saved."""

HELD_OUT = ("arms", "answers", "verification")
"""The parts that find thresholds on other problems first."""


def main(arguments: argparse.Namespace) -> None:
    overrides = [word for word in arguments.parts if "=" in word]
    parts = [word for word in arguments.parts if "=" not in word] or list(PARTS)
    for part in parts:
        if part not in PARTS:
            raise InvalidInput(f"rksc has no part {part!r}; use one of {', '.join(PARTS)}")
    for name, value, least in (
        ("problems", arguments.problems, 2),
        ("held-out", arguments.held_out, 2),
    ):
        if value is not None and value < least:
            raise InvalidInput(f"--{name}={value} must be at least {least}")
    config = Setting.of("rksc_verify", overrides).config
    arguments.out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        usual, measure = PARTS[part]
        problems = arguments.problems or usual
        words = [part, *(["--problems", str(problems)] if usual else []), *overrides]
        if part in HELD_OUT:
            words[3:3] = ["--held-out", str(arguments.held_out)]
        file = arguments.out / file_name(part, config.model.name)
        for found in measure(overrides, problems, arguments.held_out):
            about = provenance(
                shlex.join(["python", "-m", "experiments.paper", "rksc", *words]),
                model=f"{config.model.name}, with the weights that this name loads",
                simulated=f"a link of {gbps} GB/s"
                if (gbps := config.memory.get("link_gbps"))
                else "nothing",
            )
            result = about | found
            file.write_text(as_text(result), encoding="utf-8")
        print(tables.TABLES[part](result))


def file_name(part: str, model: str) -> str:
    """Where a part's figures go: the documents' are the default model's, another one's have its
    name in theirs."""
    usual = Setting.of("rksc_verify", []).config.model.name
    other = "" if model == usual else "-" + re.sub(r"[^\w.-]+", "_", model)
    return f"rksc_{part}{other}.json"


def as_text(result: dict[str, Any]) -> str:
    """Indented JSON in which a list of plain values stands on one line."""
    text = json.dumps(result, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\n\s*", " ", found[0]), text) + "\n"
