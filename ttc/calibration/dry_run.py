"""A search run dry: its policy moves KV that has sizes and no numbers, and its model computes
nothing.

Which tokens are drawn is told by a script: a policy never changes them, so what a search drew under
one policy tells what it takes under any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ttc.attention.plan import Plan
from ttc.branch import Branch
from ttc.engine import Engine
from ttc.memory.kv import LayerShape
from ttc.memory.link import NOWHERE
from ttc.residency.base import Residency

Script = Mapping[int, Sequence[int]]
"""The tokens of branches by their keys, prompts included."""
CERTAIN = 1e4
"""The logit of a token that is drawn for sure."""


@dataclass
class BranchRecorder:
    """Notes what the branches of an engine draw, while it is in use."""

    engine: Engine
    seen: dict[int, Branch] = field(init=False, default_factory=dict)

    def __enter__(self) -> BranchRecorder:
        self.forward = self.engine.runner.forward
        self.engine.runner.forward = self._note  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.runner.forward = self.forward  # type: ignore[method-assign]

    def _note(self, tokens: Any, plan: Plan, keep: Sequence[int] | None = None) -> Tensor:
        self.seen |= {branch.key: branch for branch in decoding(self.engine, plan)}
        return self.forward(tokens, plan, keep)

    @property
    def script(self) -> dict[int, list[int]]:
        return {key: list(branch.tokens) for key, branch in self.seen.items()}


def decoding(engine: Engine, plan: Plan) -> list[Branch]:
    """The branches whose next tokens a pass with this plan gives; none for other passes."""
    batches: list[Any] = list(engine.calls.batches)
    return [row.branch for batch in batches if batch.plan is plan for row in batch.rows]


class DryRunner:
    """Stands for the runner of a model: it reads and writes what a plan makes a pass read and
    write, and computes nothing."""

    def __init__(self, like: Any, shapes: Sequence[LayerShape], script: Script | None):
        self.like = like
        self.shapes = tuple(shapes)
        self.script = script
        self.engine: Engine | None = None
        self.vocabulary = like.model.config.get_text_config().vocab_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.like, name)

    def bind(self, policy: Residency) -> None:
        return

    def forward(
        self, tokens: Sequence[int], plan: Plan, keep: Sequence[int] | None = None
    ) -> Tensor:
        for layer, shape in enumerate(self.shapes):
            self._layer(layer, shape, len(tokens), plan)
        assert self.engine is not None
        for batch in plan.states:
            batch.tensors = batch.tensors or self.engine.memory.states.zeros(len(batch.rows))
        logits = torch.zeros(len(tokens if keep is None else keep), self.vocabulary)
        if self.script is not None:
            for row, branch in enumerate(decoding(self.engine, plan)):
                logits[row, self.script[branch.key][len(branch.tokens)]] = CERTAIN
        return logits

    def _layer(self, layer: int, shape: LayerShape, rows: int, plan: Plan) -> None:
        places = [place.storage for run in plan.runs for place in run.places]
        if any(storage.device[layer] is None for storage in places):
            new = torch.empty(shape.kv_heads, rows, 1, dtype=self.dtype, device=NOWHERE)
            plan.store(layer, *(new.expand(-1, -1, n) for n in (shape.key_dim, shape.value_dim)))
        if any(layer in storage.acts for storage in places):
            new = torch.empty(rows, shape.input_dim or 0, dtype=self.dtype, device=NOWHERE)
            plan.keep_inputs(layer, new)
        for _ in plan.stream.read(layer) if plan.stream is not None else ():
            pass

    def regenerate(self, layer: int, inputs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """KV without numbers, in place of what CAPTURE generates."""
        shape, dims = self.shapes[layer], (self.shapes[layer].key_dim, self.shapes[layer].value_dim)
        keys, values = (inputs.new_empty(shape.kv_heads, len(positions), dim) for dim in dims)
        return keys, values


@dataclass(frozen=True)
class Moved:
    """What a run moves and takes. to_device, to_host: bytes over the link by cause. device_bytes,
    host_bytes: of KV in each tier at its peak."""

    to_device: Counter[str]
    to_host: Counter[str]
    device_bytes: int
    host_bytes: int

    @classmethod
    def of(cls, engine: Engine) -> Moved:
        link = engine.memory.link
        peaks = engine.memory.device.peak_bytes, engine.memory.host.peak_bytes
        moved = Counter(link.to_device_bytes), Counter(link.to_host_bytes)
        return cls(*moved, *peaks)


def dry_run(
    policy: Residency,
    search: Callable[[Engine], object],
    like: Engine,
    script: Script | None = None,
) -> Moved:
    """What a search moves under a policy. like: an engine of the same model, which is not run.
    script: see above; `BranchRecorder` makes one. None: what is drawn is left to chance, as before
    a run."""
    shapes = like.residency.memory.shapes
    if policy.regenerates and not any(shape.input_dim for shape in shapes):
        from ttc.model.running.regeneration import Regeneration

        shapes = Regeneration(like.model, like.runner.shapes).shapes
    runner = DryRunner(like.runner, shapes, script)
    runtime = like.runtime
    engine = Engine(
        like.model,
        like.tokenizer,
        memory=policy,
        runner=runner,  # type: ignore[arg-type]
        prefill_tokens=runtime.prefill_tokens,
        cache=None if like.cache is None else like.cache.fresh(),
        sharing=like.sharing,
        gate=like.gate,
    )
    runner.engine = engine
    search(engine)
    return Moved.of(engine)
