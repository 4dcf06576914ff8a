"""Another caller, who comes between the steps of a draw's searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ttc import Branch, Engine


@dataclass
class Visitor:
    """Reads a prompt of the searches', writes two texts after it and scores them, and keeps these
    until its next visit.

    model: what the engine's model is during the visit: the same, with other weights, or with an
        adapter. prompts: those that it reads, in turn.
    """

    engine: Engine
    model: str | None
    prompts: Sequence[Sequence[int]]
    visits: int = 0
    kept: list[Branch] = field(default_factory=list)

    def visit(self) -> None:
        with self.engine.lock, another_model(self.engine, self.model):
            self.leave()
            prompt = self.prompts[self.visits % len(self.prompts)]
            longest = (self.engine.limits.context_length or len(prompt)) - 2
            root = self.engine.root(prompt[:longest])
            self.kept = [root, *self.engine.fork(root, 2)]
            self.engine.generate(self.kept[1:], 3)
            self.engine.score(self.kept[1:], [[[65], [66, 67]]] * 2).result()
        self.visits += 1

    def leave(self) -> None:
        self.engine.release(self.kept)
        self.kept = []


@contextmanager
def another_model(engine: Engine, kind: str | None) -> Iterator[None]:
    """The engine's model is another one meanwhile."""
    before = {name: weight.clone() for name, weight in engine.model.state_dict().items()}
    if kind == "adapter":
        from peft import LoraConfig

        settings = LoraConfig(r=2, init_lora_weights=False, target_modules="all-linear")
        engine.model.add_adapter(settings, "visit")
    elif kind == "weights":
        with torch.no_grad():
            for weight in engine.model.parameters():
                if weight.is_floating_point():
                    weight.mul_(0.5)
    if kind is not None:
        engine.model_changed()
    try:
        yield
    finally:
        if kind == "adapter":
            engine.model.delete_adapter("visit")
        elif kind == "weights":
            engine.model.load_state_dict(before)
        if kind is not None:
            engine.model_changed()
