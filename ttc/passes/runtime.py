"""What a pass needs: the model, the tree, the memory policy, and the limits of all three."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from ttc.attention.pieces import Piece
from ttc.attention.plan import Plan, Run
from ttc.branch import Branch
from ttc.checks import check_is, check_kind, check_whole
from ttc.memory.manager import Memory
from ttc.model.generation_settings import GenerationSettings
from ttc.model.limits import ModelLimits
from ttc.model.running.runner import ModelRunner
from ttc.residency.base import Residency
from ttc.task import Task
from ttc.tree.sharing import Sharing
from ttc.tree.tree import Tree

if TYPE_CHECKING:
    from ttc.model.recurrent_layers import StatesOfPass
    from ttc.model.running.lens import Lens


def check_parts(
    model: Any,
    tokenizer: Any,
    prefill_tokens: Any,
    memory: Any,
    cache: Any,
    sharing: Any,
    gate: Any,
    speculation: Any = None,
) -> None:
    """Refuse what an engine cannot be made of, by name; None stands for the default."""
    check_is(
        "model", model, torch.nn.Module, "a loaded model, or its name to Engine.from_pretrained"
    )
    reads = tokenizer is None or callable(getattr(tokenizer, "decode", None))
    check_kind(
        "tokenizer", tokenizer, reads, "a loaded tokenizer, as AutoTokenizer.from_pretrained gives"
    )
    check_whole("prefill_tokens", prefill_tokens, 1)
    for name, part, is_one, example in (
        ("memory", memory, isinstance(memory, Residency), "Paged(budget_gib=4)"),
        ("cache", cache, can(cache, "trim"), "BlockCache(capacity_blocks=2000)"),
        ("sharing", sharing, isinstance(sharing, Sharing), 'Sharing("exact")'),
        ("speculation", speculation, can(speculation, "for_engine"), "PromptLookup()"),
    ):
        check_kind(name, part, part is None or is_one, f"an object of ttc, as ttc.{example}")
    check_kind("gate", gate, gate is None or can(gate, "losers"), "a gate, as ttc.DecodeGate()")


def can(part: Any, method: str) -> bool:
    return callable(getattr(part, method, None))


@dataclass(eq=False)
class Runtime:
    """What prefill, decoding and scoring work with.

    prefill_tokens: the largest number of rows of a prefill pass. decode: tokens to text, special
        tokens left out unless `special=True`. settings: what the model's files ask of each token.
    under_way: calls that were begun, and have passes left.
    run_ahead: whether batches launch the next token's pass before they read the last token
        (`cuda/ahead.py`). On a CPU it would gain nothing.
    """

    runner: ModelRunner
    limits: ModelLimits
    residency: Residency
    tree: Tree
    sharing: Sharing
    prefill_tokens: int
    decode: Callable[..., str]
    settings: GenerationSettings
    under_way: set[Task[Any]] = field(init=False, default_factory=set)
    run_ahead: bool = field(init=False)

    def __post_init__(self) -> None:
        self.run_ahead = self.runner.device.type != "cpu"

    @property
    def memory(self) -> Memory:
        return self.residency.memory

    def opening(self, branch: Branch, count: int = 0) -> int:
        """How many tokens stand before the branch's first generated one once `count` more were
        given; 0 where that makes no difference to the model."""
        recurrent = self.runner.recurrent
        return (
            branch.opening_with(count) if recurrent is not None and recurrent.knows_opening else 0
        )

    def plan(self, pieces: Sequence[Piece], positions: Sequence[int], runs: Sequence[Run]) -> Plan:
        """The plan of passes that read these pieces and write these runs."""
        places = [place.storage for run in runs for place in run.places]
        self.memory.used([*(piece.kv for piece in pieces), *places])
        return Plan(pieces, positions, runs, self.residency)

    def pass_states(self) -> StatesOfPass | None:
        """The recurrent states of a pass; None for models without any."""
        recurrent = self.runner.recurrent
        return None if recurrent is None else recurrent.pass_states(self)

    @cached_property
    def lens(self) -> Lens:
        from ttc.passes.shrinking import checked_lens

        return checked_lens(self.runner)

    @contextmanager
    def metered(self, branches: Sequence[Branch]) -> Iterator[None]:
        """Charge what crosses the link meanwhile to the branches' problems, in equal parts."""
        before = list(self.memory.link.uncharged)
        try:
            yield
        finally:
            self.charge(branches, before)

    def charge(self, branches: Sequence[Branch], before: Sequence[int]) -> None:
        uncharged = self.memory.link.uncharged
        moved = [now - then for now, then in zip(uncharged, before, strict=True)]
        uncharged[:] = before
        for i, branch in enumerate(branches if any(moved) else ()):
            to_device, to_host = (n // len(branches) + (i < n % len(branches)) for n in moved)
            branch.usage.host_to_device_bytes += to_device
            branch.usage.device_to_host_bytes += to_host
