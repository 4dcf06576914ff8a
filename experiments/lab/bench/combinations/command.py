"""The command `python -m experiments.bench combinations`."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import Annotated

import torch

from experiments.cli.output import say, show
from experiments.lab.bench.combinations.combination import Combination
from experiments.lab.bench.combinations.comparing import failed, outcome
from experiments.lab.bench.combinations.drawing import drawn
from experiments.lab.bench.combinations.shrinking import fewest


def run(
    *,
    draws: int = 200,
    first: Annotated[int, "the first draw's seed"] = 0,
    settings: Annotated[str | None, "one combination as JSON, as a failure tells it"] = None,
) -> int:
    """Try so many draws, or one that is given as JSON. Returns an exit code: 1 where one failed."""
    torch.set_num_threads(1)
    if settings is not None:
        one = outcome(Combination(**json.loads(settings)))
        show(f"{one.kind}. {one.why}")
        return int(one.kind == "failed")
    kinds = Counter[str]()
    for seed in range(first, first + draws):
        c = drawn(seed)
        kind, _ = outcome(c)
        kinds[kind] += 1
        if kind == "failed":
            c = fewest(c, failed)
            command = shlex.join(["--settings", json.dumps(c.settings())])
            show(f"seed {seed}: {outcome(c).why}")
            show(f"  python -m experiments.bench combinations {command}")
        if kinds.total() % 100 == 0:
            say(f"{kinds.total()} of {draws}: {dict(kinds)}")
    show(f"{draws} draws from seed {first}: {dict(kinds)}")
    return int(kinds["failed"] > 0)
