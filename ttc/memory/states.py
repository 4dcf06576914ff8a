"""Recurrent states: what layers without KV keep of a sequence, however long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ttc.memory.tiers import BlockOf


class Part(NamedTuple):
    """One tensor of a state: its layer, its kind, and its number among those of the layer."""

    layer: int
    kind: Literal["conv", "recurrent"]
    number: int


Tensors = dict[Part, Tensor]
"""Of some sequences' states, (sequences, ...) each."""


@dataclass(frozen=True)
class StateShape:
    """Of one sequence: of each part its shape, without the leading dimension, type and device."""

    parts: Mapping[Part, tuple[tuple[int, ...], torch.dtype, torch.device]]

    @classmethod
    def of(cls, tensors: Tensors) -> StateShape:
        return cls(
            {
                part: (tuple(tensor.shape[1:]), tensor.dtype, tensor.device)
                for part, tensor in tensors.items()
            }
        )

    def on(self, device: torch.device) -> StateShape:
        parts = self.parts.items()
        return StateShape({part: (shape, dtype, device) for part, (shape, dtype, _) in parts})

    def part_bytes(self) -> dict[Part, int]:
        return {
            part: prod(shape) * dtype.itemsize for part, (shape, dtype, _) in self.parts.items()
        }

    def zeros(self, sequences: int) -> Tensors:
        """States of sequences that have not begun."""
        return {
            part: torch.zeros(sequences, *shape, dtype=dtype, device=device)
            for part, (shape, dtype, device) in self.parts.items()
        }


class State(BlockOf[Tensors]):
    """The state of one sequence after its last token, kept at a segment's end; it never changes. It
    moves as one piece. fixed: the tensors of layers that run on the host."""

    cause = "states"

    def __init__(self) -> None:
        super().__init__(1)
        self.fixed: Tensors = {}

    def tensors(self, copy: Tensors) -> list[Tensor]:
        return [copy[part] for part in sorted(copy)]

    def near(self, part: Part) -> Tensor | None:
        """A part where its layer runs, if it is there."""
        (moving,) = self.device
        return self.fixed.get(part) if moving is None else moving.get(part, self.fixed.get(part))


@dataclass(eq=False)
class StateBatch:
    """Sequences with equally many new tokens in a pass, whose states are changed in place.

    rows: the packed rows of each sequence, (sequences, tokens), on the CPU.
    tensors: none where all of them begin with this pass, which then leaves them here.
    in_opening: of each, whether its new tokens stand before its branch's first generated one. Empty
        where it makes no difference.
    broken: a pass was not finished, so that the states are of no use.
    cache: what the model's layers see of the states, kept from pass to pass.
    """

    rows: Tensor
    tensors: Tensors
    in_opening: Sequence[bool] = ()
    broken: bool = False
    cache: Any = field(default=None, repr=False)

    def only(self, sequences: Sequence[int], rows: Tensor, layer: int) -> StateBatch:
        """Some of the sequences, whose rows are now `rows`, with copies of their states from layer
        `layer` on."""
        stay = list(sequences)
        tensors = {
            part: tensor[stay] for part, tensor in self.tensors.items() if part.layer >= layer
        }
        return StateBatch(
            rows, tensors, [self.in_opening[n] for n in stay] if self.in_opening else ()
        )
