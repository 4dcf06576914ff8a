"""The plan of a pass, whatever it is for: a prefill, a token of each branch, a score, drafts.

What is written when the plan is made is a piece; only later tokens are a row's own. A plan of one
row for each branch is good for many passes, as long as each row's storage has room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

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
from ttc.attention.reader import Reader, Reads, View
from ttc.memory.kv import LayerKV
from ttc.memory.manager import Memory
from ttc.memory.states import StateBatch
from ttc.memory.storage import Places, Storage


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
    """New tokens of one path: their rows, and where they are written. own: how many tokens right
    before those, in the same storage, the row attends as its own; no piece has them."""

    rows: slice
    places: Sequence[Places]
    own: int = 0


class Plan:
    """A pass, or several, over packed rows.

    pieces: what rows attend in full; in depth-first order, so that those of a piece are contiguous.
    positions: of each row's token. runs: of all rows, in order.
    policy: of the memory that the pieces lie in; None where all is on the device.
    states: of models with recurrent layers, those of the pass's sequences.
    in_storages: whether each row writes its token where its branch's storage goes on. The plan is
        good for many passes then, a token further each time. passes: those that are done.

    Shapes: q (kv_heads, groups, rows, dim); key, value (kv_heads, rows, dim).
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        positions: Sequence[int],
        runs: Sequence[Run],
        policy: Policy | None = None,
    ):
        self.pieces = list(pieces)
        self.positions = list(positions)
        self.runs = list(runs)
        self.policy = policy
        self.states: Sequence[StateBatch] = ()
        places = [place for run in self.runs for place in run.places]
        written = {place.storage: place.first for place in reversed(places)}
        fresh = frozenset(
            number
            for number, piece in enumerate(self.pieces)
            if piece.first + piece.length > written.get(piece.kv, piece.kv.room)
        )
        one_each = len(self.runs) == len(self.positions) and not fresh
        self.in_storages = one_each and all(map(_takes_new, written))
        self.passes = 0
        self.stream: Reader | None = None
        if policy is not None:
            self.stream = policy.stream(Reads(self.pieces, self.positions, self.in_storages, fresh))
            # what is not being decoded may have left for the room to read through
            self.in_storages = self.in_storages and all(map(_takes_new, written))
        self._spans: dict[
            tuple[int, VisibleRange, torch.device], tuple[int, Tensor | None] | None
        ] = {}
        self._kernels: dict[torch.device, FusedAttention | None] = {}
        self._turns: Counter[tuple[int, ...]] = Counter()

    @property
    def fused(self) -> FusedAttention | None:
        """The kernel of the first layers' device; None before they ran, and where there is none."""
        return next(iter(self._kernels.values()), None)

    def kernel_on(self, q: Tensor) -> FusedAttention | None:
        """The kernel of a layer's queries, which the first layer on a device makes ready."""
        if q.device not in self._kernels:  # layers may run on several devices
            self._kernels[q.device] = self.kernel_for(q)
        return self._kernels[q.device]

    def turn(self, layers: tuple[int, ...]) -> int:
        """The next of the layers that one module serves."""
        self._turns[layers] += 1
        return layers[(self._turns[layers] - 1) % len(layers)]

    def advance(self) -> None:
        """A pass is done: each row has written a token, and the next follows it."""
        self.positions = [position + 1 for position in self.positions]
        self.passes += 1
        self._spans.clear()
        for fused in self._kernels.values():
            if fused is not None:
                fused.advance()
        if self.policy is not None and self.in_storages:
            places = [run.places[0] for run in self.runs]
            self.policy.passed([(p.storage, p.first + self.passes) for p in places])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what reading takes."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def kernel_for(self, q: Tensor) -> FusedAttention | None:
        runs = [(run.rows.start, run.rows.stop) for run in self.runs]
        if not self.in_storages:
            new = [
                (rows.start, rows.stop - rows.start, storage, first)
                for rows, storage, first in self._places()
            ]
            if self.stream is not None or not all(_takes_new(storage) for *_, storage, _ in new):
                new = []
            return fused_attention(self.pieces, runs, self.positions, q, new=new)
        places = [(run.places[0].storage, run.places[0].first - run.own) for run in self.runs]
        owners = [storage for storage, _ in places], [first for _, first in places]
        filled = [run.own + self.passes for run in self.runs]
        return fused_attention(self.pieces, runs, self.positions, q, filled, owners=owners)

    # ---------------------------------------------------------------- a layer

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        """Store the new keys and values, then attend all that the rows see: what is on the device,
        then what is read from elsewhere. Returns out (kv_heads, groups, rows, value_dim) and its
        log-sum-exp, both at least float32."""
        fused = self.kernel_on(q)
        stream = self.stream
        views = stream.views.get(layer.index, ()) if stream is not None else ()
        if fused is not None and fused.takes(layer, q) and not views:
            out, lse = self.attend_fused(fused, layer, q, key, value)
            absent = fused.arrays.absent_from(layer.index)
        else:
            self.store(layer.index, key, value)
            out, lse = self.attend_new(layer, slice(None), q, key, value)
            for heads, view in views:
                out[heads], lse[heads] = self.attend_new(view.of(layer), heads, q, key, value)
            absent = self._attend_pieces(by_view(layer, views, len(q)), q, out, lse)
        for unit, copies in stream.read(layer.index) if stream is not None else ():
            seen = layer if unit.view is None else unit.view.of(layer)
            for index, copy in copies.items():
                self._attend(seen, index, q[unit.heads], copy, out[unit.heads], lse[unit.heads])
            absent.difference_update(copies)
        if absent and (stream is None or not stream.sparse):
            self._expect_hidden(layer, absent, q.device)
        return out, lse

    def _expect_hidden(self, layer: Layer, absent: Iterable[int], device: torch.device) -> None:
        """Raise RuntimeError where something that was not read is seen."""
        for index in absent:
            rows = self.pieces[index].rows
            if rows.start < rows.stop and self._span(index, layer, device) is not None:
                raise RuntimeError(
                    f"piece {index} of layer {layer.index} is neither on the device nor read"
                )

    def attend_fused(
        self, fused: FusedAttention, layer: Layer, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        if self.in_storages:
            near = self.runs[0].places[0].storage.device[layer.index]
            assert near is not None
            own = near.keys[None], near.values[None]  # not read where owners are told
            return fused.attend(layer, q, *own, (key, value))
        if self.passes or not fused.store(layer.index, key, value):
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
                self._on_host().store(storage, layer, first, *new)
                continue
            for place, part in zip(near.both, new, strict=True):
                storage.write(place[:, first : first + part.shape[1]], part)

    def keep_inputs(self, layer: int, inputs: Tensor) -> None:
        """Store the inputs (rows, width) of a layer's K and V projections where they are kept."""
        for rows, storage, first in self._places():
            kept = storage if storage.inputs is None else storage.inputs
            if layer not in kept.acts:
                continue
            part = inputs[None, rows]
            near = kept.device[layer]
            if near is None:
                self._on_host().store(storage, layer, first, part, part[..., :0])
            else:
                near.keys[:, first : first + part.shape[1]] = part

    def _places(self) -> Iterator[tuple[slice, Storage, int]]:
        """Which rows of this pass are written in a storage, and from which of its tokens on."""
        for run in self.runs:
            row = run.rows.start
            for storage, first, length in run.places:
                yield slice(row, row + length), storage, first + self.passes
                row += length

    def _on_host(self) -> Memory:
        assert self.policy is not None, "what is being written is in neither tier"
        return self.policy.memory

    def _attend_pieces(
        self, sights: Sequence[tuple[slice, Layer]], q: Tensor, out: Tensor, lse: Tensor
    ) -> set[int]:
        """Fold the pieces on the device into (out, lse), and return the others."""
        absent = set()
        for index, piece in enumerate(self.pieces):
            copy = piece.kv.readable(sights[0][1].index)
            if copy is None:
                absent.add(index)
                continue
            both = piece.kv.span(copy, piece.first, piece.first + piece.length)
            for heads, layer in sights:
                part = LayerKV(*(one[heads] for one in both))
                self._attend(layer, index, q[heads], part, out[heads], lse[heads])
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
        """What some KV heads see of the tokens that are each row's own."""
        parts = []
        for row, run in enumerate(self.runs):
            storage, first, _ = run.places[0]
            near = storage.device[layer.index]
            assert near is not None
            span = storage.span(near, first - run.own, first + self.passes + 1)
            keys, values = (part[heads] for part in span)
            visible = None
            if not layer.sees_all:
                end = self.positions[row] + 1
                positions = torch.arange(end - keys.shape[1], end, device=q.device)
                visible = layer.sees(positions[-1:], positions)
            own = q[heads][:, :, row : row + 1]
            parts.append(segment_attention(own, keys, values, layer, visible))
        out, lse = (torch.cat(side, 2) for side in zip(*parts, strict=True))
        return out.to(torch.promote_types(out.dtype, torch.float32)), lse

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


def _takes_new(storage: Storage) -> bool:
    """Whether a kernel can write new keys and values where a storage goes on."""
    return storage.is_resident and not storage.acts and storage.codec is None


def by_view(
    layer: Layer, views: Sequence[tuple[slice, View]], kv_heads: int
) -> list[tuple[slice, Layer]]:
    """All KV heads of a layer in runs, and what each of these sees."""
    layers = []
    first = 0
    for heads, view in views:
        if first < heads.start:
            layers.append((slice(first, heads.start), layer))
        layers.append((heads, view.of(layer)))
        first = heads.stop
    if first < kv_heads:
        layers.append((slice(first, kv_heads), layer))
    return layers
