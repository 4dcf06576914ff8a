"""The plan of a pass, whatever it is for: a prefill, a token of each branch, a score, drafts.

What is written when the plan is made is a piece; only later tokens are a row's own. A plan of one
row for each branch is good for many passes, as long as each row's storage has room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ttc.attention.fused import FusedAttention, fused_attention
from ttc.attention.kernels import Layer, Partial, partial_attention
from ttc.attention.plan import Plan
from ttc.memory.kv import LayerKV
from ttc.segments.memory import Memory
from ttc.segments.pieces import Piece
from ttc.segments.reader import Reader, Reads
from ttc.segments.storage import Storage
from ttc.segments.tree import Places


class Policy(Protocol):
    """What a plan asks of a policy of the memory."""

    @property
    def memory(self) -> Memory: ...

    def stream(self, reads: Reads) -> Reader | None:
        """How what is not on the device is read, None when everything is there."""

    def passed(self, storages: Sequence[tuple[Storage, int]]) -> None:
        """Branches that decode have written storages up to so many tokens."""


@dataclass(frozen=True)
class Run:
    """New tokens of one path: their rows, and where they are written."""

    rows: slice
    places: Sequence[Places]


class TreePlan(Plan):
    """runs: of all rows, in order.

    in_storages: whether each row writes its token where its branch's storage goes on. The plan is
        good for many passes then, a token further each time.
    passes: those that are done.
    """

    def __init__(
        self, pieces: Sequence[Piece], positions: Sequence[int], runs: Sequence[Run], policy: Policy
    ):
        self.runs = list(runs)
        self.policy = policy
        one_each = len(self.runs) == len(positions)
        places = [place for run in self.runs for place in run.places]
        near = all(None not in place.storage.device for place in places)
        self.in_storages = one_each and near and not any(place.storage.acts for place in places)
        self.passes = 0
        stream = policy.stream(Reads(pieces, positions, self.in_storages))
        super().__init__(pieces, positions, stream)  # type: ignore[arg-type]

    def advance(self) -> None:
        """A pass is done: each row has written a token, and the next follows it."""
        self.positions = [position + 1 for position in self.positions]
        self.passes += 1
        self._spans.clear()
        for fused in self._kernels.values():
            if fused is not None:
                fused.advance()
        places = [run.places[0] for run in self.runs]
        self.policy.passed([(place.storage, place.first + self.passes) for place in places])

    # ---------------------------------------------------------------- what `Plan` asks

    def kernel_for(self, q: Tensor) -> FusedAttention | None:
        runs = [(run.rows.start, run.rows.stop) for run in self.runs]
        if not self.in_storages:
            return fused_attention(self.entries, runs, self.positions, q)
        rows = range(len(runs))
        places = [run.places[0] for run in self.runs]
        owners = [place.storage for place in places], [place.first for place in places]
        filled = [self.passes] * len(rows)
        return fused_attention(self.entries, runs, self.positions, q, (rows, filled), owners=owners)

    def attend_fused(
        self, fused: FusedAttention, layer: Layer, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        if self.in_storages:
            near = self.runs[0].places[0].storage.device[layer.index]
            assert near is not None
            own = near.keys[None], near.values[None]  # not read where owners are told
            return fused.attend(layer, q, *own, (key, value))
        self.store(layer.index, key, value)
        # each row may begin a run of keys, so owners are as far apart as tokens
        new = (x if x.stride(-1) == 1 else x.contiguous() for x in (key, value))
        keys, values = (x.as_strided((1, *x.shape), (x.stride(1), *x.stride())) for x in new)
        return fused.attend(layer, q, keys, values, None)

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        for rows, storage, first in self._places():
            if layer in storage.acts:
                continue
            new = key[:, rows], value[:, rows]
            near = storage.device[layer]
            if near is None:
                self.policy.memory.store(storage, layer, first, *new)
                continue
            for place, part in zip(near.both, new, strict=True):
                place[:, first : first + part.shape[1]] = part

    def keep_inputs(self, layer: int, inputs: Tensor) -> None:
        """Store the inputs (rows, width) of a layer's K and V projections where they are kept."""
        for rows, storage, first in self._places():
            kept = storage if storage.inputs is None else storage.inputs
            if layer not in kept.acts:
                continue
            part = inputs[None, rows]
            near = kept.device[layer]
            if near is None:
                self.policy.memory.store(storage, layer, first, part, part[..., :0])
            else:
                near.keys[:, first : first + part.shape[1]] = part

    def _places(self) -> Iterator[tuple[slice, Storage, int]]:
        """Which rows of this pass are written in a storage, and from which of its tokens on."""
        for run in self.runs:
            row = run.rows.start
            for storage, first, length in run.places:
                yield slice(row, row + length), storage, first + self.passes
                row += length

    def _attend_entries(self, layer: Layer, q: Tensor, out: Tensor, lse: Tensor) -> set[int]:
        absent = set()
        for index, piece in enumerate(self.entries):
            copy = piece.kv.readable(layer.index)
            if copy is None:
                absent.add(index)
            else:
                end = piece.first + piece.length
                part = LayerKV(*piece.kv.span(copy, piece.first, end))  # type: ignore[attr-defined]
                self._attend(layer, index, q, part, out, lse)
        return absent

    def attend_new(
        self, layer: Layer, heads: slice, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        if self.in_storages:
            return self._attend_own(layer, heads, q)
        q, key, value = q[heads], key[heads], value[heads]
        kv_heads, groups, rows, _ = q.shape
        dtype = torch.promote_types(q.dtype, torch.float32)
        out = torch.empty(kv_heads, groups, rows, value.shape[-1], dtype=dtype, device=q.device)
        lse = torch.empty(kv_heads, groups, rows, dtype=dtype, device=q.device)
        for run in self.runs:
            own = run.rows
            visible = None
            if not layer.sees_all:
                positions = torch.tensor(self.positions[own], device=q.device)
                visible = layer.sees(positions, positions)
            out[:, :, own], lse[:, :, own] = partial_attention(
                q[:, :, own],
                key[:, None, own].expand(-1, groups, -1, -1),
                value[:, None, own].expand(-1, groups, -1, -1),
                layer,
                causal=True,
                visible=visible,
            )
        return out, lse

    def _attend_own(self, layer: Layer, heads: slice, q: Tensor) -> Partial:
        """What some KV heads see of the tokens that each row has written since the plan was
        made."""
        count = self.passes + 1
        parts = []
        for run in self.runs:
            storage, first, _ = run.places[0]
            near = storage.device[layer.index]
            assert near is not None
            parts.append([part[heads] for part in storage.span(near, first, first + count)])
        keys, values = (torch.stack(side) for side in zip(*parts, strict=True))
        visible = None
        if not layer.sees_all:
            positions = torch.tensor(self.positions, device=q.device)
            places = positions[:, None] - torch.arange(count - 1, -1, -1, device=q.device)
            seen = [
                layer.sees(one[None], its)[0] for one, its in zip(positions, places, strict=True)
            ]
            visible = torch.stack(seen)[:, None, None]
        out, lse = partial_attention(
            q[heads].permute(2, 0, 1, 3), keys, values, layer, visible=visible
        )
        out = out.to(torch.promote_types(out.dtype, torch.float32))
        return out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)
