"""The plan of a pass, whatever it is for: a prefill, a token of each branch, a score, drafts.

What is written when the plan is made is a piece; only later tokens are a row's own. A plan of one
row for each branch is good for many passes, as long as each row's storage has room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ttc.attention.fused import FusedAttention, fused_attention
from ttc.attention.kernels import Layer, Partial, partial_attention
from ttc.attention.plan import Plan
from ttc.memory.kv import LayerKV
from ttc.segments.pieces import Piece
from ttc.segments.tree import Places

Staged = tuple[slice, dict[int, LayerKV]]
"""Some KV heads, and of these what was read of pieces, by their numbers."""
Read = Callable[[int, Sequence[Piece], Sequence[int]], Iterator[Staged]]
"""How a policy reads those pieces of a layer that attention does not find on the device."""


@dataclass(frozen=True)
class Run:
    """New tokens of one path: their rows, and where they are written."""

    rows: slice
    places: Sequence[Places]


class TreePlan(Plan):
    """runs: of all rows, in order. read: see `Read`.

    goes_on: whether it is good for the passes after this one, a token further each time: where a
        kernel attends, which is known once the first pass has run.
    """

    def __init__(
        self, pieces: Sequence[Piece], positions: Sequence[int], runs: Sequence[Run], read: Read
    ):
        super().__init__(pieces, positions)  # type: ignore[arg-type]
        self.runs = list(runs)
        self.read = read
        one_each = len(self.runs) == len(self.positions)
        near = all(None not in run.places[0].storage.device for run in self.runs)
        acts = any(run.places[0].storage.acts for run in self.runs)
        self.in_storages = one_each and near and not acts
        self.goes_on = False

    def advance(self) -> None:
        """A pass is done: each row has written a token, and the next follows it."""
        self.positions = [position + 1 for position in self.positions]
        self._spans.clear()
        for fused in self._kernels.values():
            if fused is not None:
                fused.advance()

    # ---------------------------------------------------------------- what `Plan` asks

    def kernel_for(self, q: Tensor) -> FusedAttention | None:
        runs = [(run.rows.start, run.rows.stop) for run in self.runs]
        if not self.in_storages:
            return fused_attention(self.entries, runs, self.positions, q)
        rows = range(len(runs))
        places = [run.places[0] for run in self.runs]
        owners = [place.storage for place in places], [place.first for place in places]
        kernel = fused_attention(
            self.entries, runs, self.positions, q, (rows, [0] * len(rows)), owners=owners
        )
        self.goes_on = kernel is not None
        return kernel

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        fused = self.kernel_on(q)
        if fused is not None and fused.takes(layer, q):
            out, lse = self.attend_fused(fused, layer, q, key, value)
            absent = fused.arrays.absent_from(layer.index)
        else:
            self.store(layer.index, key, value)
            out, lse = self.attend_new(layer, slice(None), q, key, value)
            absent = self._attend_entries(layer, q, out, lse)
        if absent:
            for heads, staged in self.read(layer.index, self.entries, sorted(absent)):  # type: ignore[arg-type]
                for index, copy in staged.items():
                    self._attend(layer, index, q[heads], copy, out[heads], lse[heads])
        return out, lse

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
        for run in self.runs:
            row = run.rows.start
            for storage, first, length in run.places:
                if layer not in storage.acts:
                    copy = storage.device[layer]
                    assert copy is not None, "what is being written is on the device"
                    copy.keys[:, first : first + length] = key[:, row : row + length]
                    copy.values[:, first : first + length] = value[:, row : row + length]
                row += length

    def keep_inputs(self, layer: int, inputs: Tensor) -> None:
        """Store the inputs (rows, width) of a layer's K and V projections where they are kept."""
        for run in self.runs:
            row = run.rows.start
            for storage, first, length in run.places:
                if layer in storage.acts:
                    copy = storage.device[layer]
                    assert copy is not None
                    copy.keys[0, first : first + length] = inputs[row : row + length]
                row += length

    def _attend_entries(self, layer: Layer, q: Tensor, out: Tensor, lse: Tensor) -> set[int]:
        absent = set()
        for index, piece in enumerate(self.entries):
            copy = piece.kv.readable(layer.index)
            if copy is None:
                absent.add(index)
            else:
                where = slice(piece.first, piece.first + piece.length)
                part = LayerKV(copy.keys[:, where], copy.values[:, where])
                self._attend(layer, index, q, part, out, lse)
        return absent

    def attend_new(
        self, layer: Layer, heads: slice, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
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
