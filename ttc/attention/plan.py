"""The plan of a pass, whatever it is for: a prefill, a token of each branch, a score, drafts.

What is written when the plan is made is a piece; only later tokens are a row's own. A plan of one
row for each branch is good for many passes, as long as each row's storage has room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ttc.attention.fused import FusedAttention, fused_attention
from ttc.attention.kernels import (
    Layer,
    Partial,
    VisibleRange,
    merge_,
    partial_attention,
    segment_attention,
)
from ttc.attention.pieces import Piece
from ttc.memory.kv import LayerKV
from ttc.memory.states import StateBatch
from ttc.memory.storage import Places

Staged = tuple[slice, dict[int, LayerKV]]
"""Some KV heads, and of these what was read of pieces, by their numbers."""
Read = Callable[[int, Sequence[Piece], Sequence[int]], Iterator[Staged]]
"""How a policy reads those pieces of a layer that attention does not find on the device."""


@dataclass(frozen=True)
class Run:
    """New tokens of one path: their rows, and where they are written."""

    rows: slice
    places: Sequence[Places]


class Plan:
    """pieces: what rows attend in full, the rows packed in depth-first order so that those of a
        piece are contiguous.
    positions: the position of each row's token.
    runs: of all rows, in order. read: see `Read`.
    states: of models with recurrent layers, the states of the pass's sequences.
    goes_on: whether it is good for the passes after this one, a token further each time: where a
        kernel attends, which is known once the first pass has run.
    Shapes: q (kv_heads, groups, rows, dim); key, value (kv_heads, rows, dim).
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        positions: Sequence[int],
        runs: Sequence[Run],
        read: Read | None = None,
    ):
        self.pieces = list(pieces)
        self.positions = list(positions)
        self.runs = list(runs)
        self.read = read
        self.states: Sequence[StateBatch] = ()
        one_each = len(self.runs) == len(self.positions)
        near = all(None not in run.places[0].storage.device for run in self.runs)
        acts = any(run.places[0].storage.acts for run in self.runs)
        self.in_storages = one_each and near and not acts
        self.goes_on = False
        self._spans: dict[
            tuple[int, VisibleRange, torch.device], tuple[int, Tensor | None] | None
        ] = {}
        self._kernels: dict[torch.device, FusedAttention | None] = {}
        self._turns: Counter[tuple[int, ...]] = Counter()

    @property
    def fused(self) -> FusedAttention | None:
        """The kernel of the device that the first layers run on; None before they ran, and where
        there is none."""
        return next(iter(self._kernels.values()), None)

    def kernel_on(self, q: Tensor) -> FusedAttention | None:
        """The kernel of a layer's queries, which the first of the layers on a device makes
        ready."""
        if q.device not in self._kernels:  # layers may run on several devices
            self._kernels[q.device] = self.kernel_for(q)
        return self._kernels[q.device]

    def turn(self, layers: tuple[int, ...]) -> int:
        """The next of the layers that one module serves, from the first one again in a next
        pass."""
        self._turns[layers] += 1
        return layers[(self._turns[layers] - 1) % len(layers)]

    def advance(self) -> None:
        """A pass is done: each row has written a token, and the next follows it."""
        self.positions = [position + 1 for position in self.positions]
        self._spans.clear()
        for fused in self._kernels.values():
            if fused is not None:
                fused.advance()

    def kernel_for(self, q: Tensor) -> FusedAttention | None:
        runs = [(run.rows.start, run.rows.stop) for run in self.runs]
        if not self.in_storages:
            return fused_attention(self.pieces, runs, self.positions, q)
        rows = range(len(runs))
        places = [run.places[0] for run in self.runs]
        owners = [place.storage for place in places], [place.first for place in places]
        kernel = fused_attention(
            self.pieces, runs, self.positions, q, (rows, [0] * len(rows)), owners=owners
        )
        self.goes_on = kernel is not None
        return kernel

    # ---------------------------------------------------------------- a layer

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        """Store the new keys and values, then attend all that the rows see: what is on the device,
        then what is read from elsewhere.

        Returns out (kv_heads, groups, rows, value_dim) and its log-sum-exp, both at least float32.
        """
        fused = self.kernel_on(q)
        if fused is not None and fused.takes(layer, q):
            out, lse = self.attend_fused(fused, layer, q, key, value)
            absent = fused.arrays.absent_from(layer.index)
        else:
            self.store(layer.index, key, value)
            out, lse = self.attend_new(layer, slice(None), q, key, value)
            absent = self._attend_pieces(layer, q, out, lse)
        if absent:
            assert self.read is not None, "a piece is neither on the device nor read"
            for heads, staged in self.read(layer.index, self.pieces, sorted(absent)):
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

    def _attend_pieces(self, layer: Layer, q: Tensor, out: Tensor, lse: Tensor) -> set[int]:
        """Fold the pieces on the device into (out, lse), and return the others."""
        absent = set()
        for index, piece in enumerate(self.pieces):
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

    def _attend(
        self, layer: Layer, index: int, q: Tensor, copy: LayerKV, out: Tensor, lse: Tensor
    ) -> None:
        """Fold one piece into (out, lse), which have the heads that q and the copy have."""
        piece = self.pieces[index]
        rows = piece.rows
        if rows.start == rows.stop:  # all of them have left the pass
            return
        span = (0, None) if layer.sees_all else self._span(index, layer, q.device)
        if span is None:
            return
        lo, visible = span
        keys = copy.keys[:, lo : piece.length]
        values = copy.values[:, lo : piece.length]
        keys, values = (piece.kv.read(part, q.dtype) for part in (keys, values))
        part = segment_attention(q[:, :, rows], keys, values, layer, visible)
        merge_(out[:, :, rows], lse[:, :, rows], *part)

    def _span(
        self, index: int, layer: Layer, device: torch.device
    ) -> tuple[int, Tensor | None] | None:
        """What a layer sees of a piece: (first key, (rows, keys) visibility or None for all), or
        None."""
        key = index, layer.sight, device
        if key not in self._spans:
            self._spans[key] = self._new_span(self.pieces[index], layer, device)
        return self._spans[key]

    def _new_span(
        self, piece: Piece, layer: Layer, device: torch.device
    ) -> tuple[int, Tensor | None] | None:
        positions = self.positions[piece.rows]
        reach = replace(layer, recent=None) if piece.start < layer.sink else layer
        lo = max(0, reach.first_seen(min(positions)) - piece.start)
        if lo >= piece.length:
            return None
        if layer.first_seen(max(positions)) <= piece.start + lo:
            return lo, None
        keys = torch.arange(piece.start + lo, piece.start + piece.length, device=device)
        return lo, layer.sees(torch.tensor(positions, device=device), keys)
