"""One model of `experiments.lab.bench.quantized`, in a process of its own that answers requests."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from experiments.lab.bench.prefix import prompt
from ttc.branch import Branch
from ttc.engine import Engine
from ttc.sampling import Sampling
from ttc.stored.gguf_loading import read_stored
from ttc.stored.kernel import unpacked
from ttc.stored.layers import StoredLinear

THREADS = 2


def run(
    file: Path,
    /,
    *,
    bfloat16: Annotated[bool, "unpack its weights"] = False,
    int8: Annotated[bool, "round activations to 8 bits"] = False,
) -> None:
    """Say what the model is, then answer each line of standard input with a line.

    bfloat16: its linear layers become ordinary ones of 16 bits. int8: they take their inputs in 8
    bits.
    """
    torch.set_num_threads(THREADS)
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    model = read_stored(AutoModelForCausalLM, config, torch.bfloat16, file).eval()
    if bfloat16:
        unpack(model)
    way = Measured(Engine(model, None, runner="fused", int8_activations=int8))
    _say(way.about())
    for line in sys.stdin:
        ms = way.measure(json.loads(line)) * 1e3
        _say({"ms": ms, "peak_bytes": peak_bytes()})


def unpack(model: Any) -> None:
    """Put plain linear layers in the places of those whose weights stay as they are stored."""
    for name, module in list(model.named_modules()):
        if isinstance(module, StoredLinear):
            plain = torch.nn.Linear(1, 1, bias=False)
            plain.in_features, plain.out_features = module.in_features, module.out_features
            numbers = unpacked(module.packed, module.stored, module.in_features)
            plain.weight = torch.nn.Parameter(numbers.bfloat16(), requires_grad=False)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, plain)


def peak_bytes() -> int:
    """The most memory of this process; `getrusage` would count that of its parent too."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Measured:
    """What is asked of an engine, in seconds."""

    def __init__(self, engine: Engine):
        engine.limits.eos_ids = frozenset()
        self.engine = engine
        self.prefills = 0
        self.root: Branch | None = None

    def about(self) -> dict[str, Any]:
        model = self.engine.model
        linears = [m for m in model.modules() if isinstance(m, StoredLinear | torch.nn.Linear)]
        weights = [m.packed if isinstance(m, StoredLinear) else m.weight for m in linears]
        return {
            "weight_bytes": sum(weight.nbytes for weight in weights),
            "products": sum(m.in_features * m.out_features for m in linears),
            "by": getattr(self.engine.runner, "reason", ""),
        }

    def measure(self, asked: dict[str, Any]) -> float:
        """The seconds of a prefill, or of a step of so many branches of what was prefilled last."""
        if asked["figure"] == "prefill" or self.root is None:
            start = time.perf_counter()
            self.root = self._prefill(asked["prefix"])
            if asked["figure"] == "prefill":
                return time.perf_counter() - start
        if asked["figure"].isdecimal():
            return self._branches(self.root, int(asked["figure"]), asked["tokens"])
        return self._beams(self.root, asked["beam_steps"], asked["beam_tokens"])

    def _prefill(self, tokens: int) -> Branch:
        """A prompt that begins unlike those before it, which may be in the cache."""
        if self.root is not None:
            self.engine.release([self.root])
        self.prefills += 1
        highest = self.engine.model.config.vocab_size - 1
        ids = [self.prefills, *prompt(tokens - 1)]
        return self.engine.root([min(token, highest) for token in ids])

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
