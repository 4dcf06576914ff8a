"""One model of `experiments.lab.bench.quantized`, in a process of its own that answers requests."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from experiments.lab.bench.prefix import prompt
from ttc.engine import Engine
from ttc.model.stored_layers import StoredLinear
from ttc.sampling import Sampling
from ttc.tree.branch import Branch

THREADS = 2


def run(file: Path, bfloat16: bool) -> None:
    """Say what the model is, then answer each line of standard input with a line."""
    torch.set_num_threads(THREADS)
    engine = Engine.from_pretrained(
        file, device="cpu", dtype=torch.bfloat16, quantized=not bfloat16
    )
    engine.limits.eos_ids = frozenset()
    way = Measured(engine)
    _say(way.about())
    for line in sys.stdin:
        ms = way.measure(json.loads(line)) * 1e3
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        _say({"ms": ms, "peak_bytes": peak})


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Measured:
    """What is asked of an engine, in seconds."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.asked = 0

    def about(self) -> dict[str, Any]:
        model = self.engine.model
        linears = [m for m in model.modules() if isinstance(m, StoredLinear | torch.nn.Linear)]
        weights = [m.packed if isinstance(m, StoredLinear) else m.weight for m in linears]
        return {
            "weight_bytes": sum(weight.nbytes for weight in weights),
            "products": sum(m.in_features * m.out_features for m in linears),
            "by": self.engine.runner.reason,
        }

    def measure(self, asked: dict[str, Any]) -> float:
        """The seconds of a prefill, or of a step of so many branches. Each has a prompt of its
        own, as what was computed before is in the cache."""
        self.asked += 1
        ids = [self.asked, *prompt(asked["prefix"])]
        highest = self.engine.model.config.vocab_size - 1
        start = time.perf_counter()
        root = self.engine.root([min(token, highest) for token in ids[: asked["prefix"]]])
        if asked["figure"] == "prefill":
            seconds = time.perf_counter() - start
        elif asked["figure"].isdecimal():
            seconds = self._branches(root, int(asked["figure"]), asked["tokens"])
        else:
            seconds = self._beams(root, asked["beam_steps"], asked["beam_tokens"])
        self.engine.release([root])
        return seconds

    def _branches(self, root: Branch, count: int, tokens: int) -> float:
        forks = self.engine.fork(root, count)
        self._generate(forks, 1)
        start = time.perf_counter()
        self._generate(forks, tokens)
        seconds = time.perf_counter() - start
        self.engine.release(forks)
        return seconds / tokens

    def _beams(self, root: Branch, steps: int, tokens: int) -> float:
        """A token of a beam search 4 x 4 whose every step keeps the first four branches."""
        start = time.perf_counter()
        branches = self.engine.fork(root, 16)
        for _ in range(steps):
            self._generate(branches, tokens)
            forks = [fork for kept in branches[:4] for fork in self.engine.fork(kept, 4)]
            self.engine.release(branches)
            branches = forks
        seconds = time.perf_counter() - start
        self.engine.release(branches)
        return seconds / (steps * tokens)

    def _generate(self, branches: list[Branch], tokens: int) -> None:
        self.engine.generate(branches, tokens, sampling=Sampling())
