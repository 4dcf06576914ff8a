"""An attention plan: which rows of one forward pass attend which runs of KV, and where new KV is
written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from ttc.attention.entry import Entry
from ttc.attention.fused import FusedAttention, fused_attention
from ttc.attention.kernels import (
    Layer,
    Partial,
    VisibleRange,
    merge_,
    partial_attention,
    segment_attention,
)
from ttc.memory.kv import KV, LayerKV
from ttc.memory.states import StateBatch

if TYPE_CHECKING:
    from ttc.attention.stream import KVReader

ALL_HEADS = slice(None)


class Plan(ABC):
    """The part that every plan shares.

    entries: what rows attend in full, the rows packed in depth-first order so that those of an
        entry are contiguous.
    positions: the position of each row's token.
    states: of models with recurrent layers, the states of the pass's sequences.
    Shapes: q (kv_heads, groups, rows, dim); key, value (kv_heads, rows, dim).
    """

    def __init__(
        self, entries: Sequence[Entry], positions: Sequence[int], stream: KVReader | None = None
    ):
        self.entries = list(entries)
        self.positions = list(positions)
        self.stream = stream
        self.states: Sequence[StateBatch] = ()
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

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        """Store the new keys and values, then attend tails and entries: what is on the device, then
        what streams in.

        Returns out (kv_heads, groups, rows, value_dim) and its log-sum-exp, both at least float32.
        """
        fused = self.kernel_on(q)
        views = self.stream.views.get(layer.index, ()) if self.stream is not None else ()
        if fused is not None and fused.takes(layer, q) and not views:
            out, lse = self.attend_fused(fused, layer, q, key, value)
            absent = fused.arrays.absent_from(layer.index)
        else:
            self.store(layer.index, key, value)
            out, lse = self.attend_new(layer, ALL_HEADS, q, key, value)
            for heads, view in views:
                out[heads], lse[heads] = self.attend_new(view.of(layer), heads, q, key, value)
            absent = self._attend_entries(layer, q, out, lse)
        if self.stream is not None:
            for unit, copies in self.stream.read(layer.index):
                seen = layer if unit.view is None else unit.view.of(layer)
                for index, copy in copies.items():
                    self._attend(seen, index, q[unit.heads], copy, out[unit.heads], lse[unit.heads])
                absent.difference_update(copies)
        if absent and (self.stream is None or not self.stream.sparse):
            self._expect_hidden(layer, absent, q.device)
        return out, lse

    def _attend_entries(self, layer: Layer, q: Tensor, out: Tensor, lse: Tensor) -> set[int]:
        """Fold the entries on the device into (out, lse), and return the others."""
        absent = set()
        for index, entry in enumerate(self.entries):
            if (copy := entry.kv.readable(layer.index)) is not None:
                self._attend(layer, index, q, copy, out, lse)
            else:
                absent.add(index)
        return absent

    def _expect_hidden(self, layer: Layer, absent: Iterable[int], device: torch.device) -> None:
        """Raise RuntimeError where something that was not read lies within the layer's window."""
        for index in absent:
            rows = self.entries[index].rows
            if rows.start < rows.stop and self._span(index, layer, device) is not None:
                raise RuntimeError(
                    f"entry {index} of layer {layer.index} is neither on the device nor in the "
                    "stream"
                )

    def _attend(
        self, layer: Layer, index: int, q: Tensor, copy: LayerKV, out: Tensor, lse: Tensor
    ) -> None:
        """Fold one entry into (out, lse), which have the heads that q and the copy have."""
        entry = self.entries[index]
        rows = entry.rows
        if rows.start == rows.stop:  # all of them have left the pass
            return
        span = (0, None) if layer.sees_all else self._span(index, layer, q.device)
        if span is None:
            return
        lo, visible = span
        keys = copy.keys[:, lo : entry.length]
        values = copy.values[:, lo : entry.length]
        keys, values = (entry.kv.read(part, q.dtype) for part in (keys, values))
        part = segment_attention(q[:, :, rows], keys, values, layer, visible)
        merge_(out[:, :, rows], lse[:, :, rows], *part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what the stream holds."""
        if self.stream is not None:
            self.stream.close()

    @abstractmethod
    def kernel_for(self, q: Tensor) -> FusedAttention | None:
        """The kernel that attends all at once, None to go operation by operation."""

    @abstractmethod
    def attend_fused(
        self, fused: FusedAttention, layer: Layer, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        """Store the new keys and values, and attend all that is on the device, in one call."""

    @abstractmethod
    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the new keys and values where they stay."""

    @abstractmethod
    def attend_new(
        self, layer: Layer, heads: slice, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        """What some KV heads see of the new tokens and of tails, as `layer` says."""

    def _span(
        self, index: int, layer: Layer, device: torch.device
    ) -> tuple[int, Tensor | None] | None:
        """What a layer sees of an entry: (first key, (rows, keys) visibility or None for all), or
        None."""
        key = index, layer.sight, device
        if key not in self._spans:
            self._spans[key] = self._new_span(self.entries[index], layer, device)
        return self._spans[key]

    def _new_span(
        self, entry: Entry, layer: Layer, device: torch.device
    ) -> tuple[int, Tensor | None] | None:
        positions = self.positions[entry.rows]
        reach = replace(layer, recent=None) if entry.start < layer.sink else layer
        lo = max(0, reach.first_seen(min(positions)) - entry.start)
        if lo >= entry.length:
            return None
        if layer.first_seen(max(positions)) <= entry.start + lo:
            return lo, None
        keys = torch.arange(entry.start + lo, entry.start + entry.length, device=device)
        return lo, layer.sees(torch.tensor(positions, device=device), keys)


class DecodePlan(Plan):
    """One new token for each branch, whose tails lie in one buffer.

    tails: KV with a row for each tail.
    filled: the tokens that each branch's tail holds before this pass, one number if all have as
        many.
    places: the row of each branch's tail, None for the branch's number.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        positions: Sequence[int],
        tails: KV,
        filled: int | Sequence[int],
        stream: KVReader | None = None,
        places: Sequence[int] | None = None,
    ):
        super().__init__(entries, positions, stream)
        rows = range(len(self.positions))
        self.tails = tails
        self.filled = [filled] * len(rows) if isinstance(filled, int) else list(filled)
        self.places = list(rows) if places is None else list(places)
        self.in_order = self.places == list(rows)
        self.even = self.in_order and len(set(self.filled)) <= 1
        self._masks: dict[tuple[int, int, VisibleRange, torch.device], Tensor] = {}

    def advance(self) -> None:
        """The pass is done: every tail has one token more."""
        self.filled = [tokens + 1 for tokens in self.filled]
        self.positions = [p + 1 for p in self.positions]
        self._spans.clear()
        self._masks.clear()
        for fused in self._kernels.values():
            if fused is not None:
                fused.advance()

    def advance_by(self, counts: Sequence[int]) -> None:
        """Another pass has put so many tokens into each tail."""
        self.filled = [tokens + n for tokens, n in zip(self.filled, counts, strict=True)]
        self.positions = [p + n for p, n in zip(self.positions, counts, strict=True)]
        self.even = self.in_order and len(set(self.filled)) <= 1
        self.__dict__.pop("_neighbours", None)
        self._spans.clear()
        self._masks.clear()
        for fused in self._kernels.values():
            if fused is not None:
                fused.advance_by(counts)

    def prepare(self, q: Tensor) -> None:
        """Make the kernel before the first layer asks for it. q: (kv_heads, groups, ...) as a layer
        would give it; its numbers are not read."""
        if q.device not in self._kernels:
            self._kernels[q.device] = self.kernel_for(q)

    def kernel_for(self, q: Tensor) -> FusedAttention | None:
        runs = [(row, row + 1) for row in range(len(self.positions))]
        return fused_attention(self.entries, runs, self.positions, q, (self.places, self.filled))

    def attend_fused(
        self, fused: FusedAttention, layer: Layer, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        copy = self._tails(layer.index)
        if self.tails.device[layer.index] is None:
            self._store_on_host(layer.index, key, value)
        return fused.attend(layer, q, copy.keys, copy.values, (key, value))

    def _tails(self, layer: int) -> LayerKV:
        """A layer's tails on the device, where they live or are staged."""
        copy = self.tails.device[layer]
        if copy is None:
            assert self.stream is not None
            copy = self.stream.staged_tails(layer)
        return copy

    def _store_on_host(self, layer: int, key: Tensor, value: Tensor) -> None:
        assert self.stream is not None
        for rows, places in self._neighbours:
            where = places, slice(None), self.filled[rows.start]
            new = (x[:, rows].transpose(0, 1) for x in (key, value))
            self.stream.memory.store(self.tails, layer, where, *new)

    @cached_property
    def _neighbours(self) -> list[tuple[slice, slice]]:
        """Rows whose tails are neighbours and equally long, and the places of these."""
        places, filled = self.places, self.filled
        ends = [
            row
            for row in range(1, len(places))
            if (places[row], filled[row]) != (places[row - 1] + 1, filled[row - 1])
        ]
        spans = pairwise([0, *ends, len(places)])
        return [
            (slice(first, end), slice(places[first], places[first] + end - first))
            for first, end in spans
        ]

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        copy = self._tails(layer)
        if self.tails.device[layer] is None:
            self._store_on_host(layer, key, value)
        for rows, places in self._neighbours:
            for tails, new in zip(copy.both, (key, value), strict=True):
                tails[places, :, self.filled[rows.start]] = new[:, rows].transpose(0, 1)

    def attend_new(
        self, layer: Layer, heads: slice, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        copy = self._tails(layer.index)
        end = max(self.filled) + 1
        los = {0}
        if not layer.sees_all:
            held = zip(self.positions, self.filled, strict=True)
            los = {max(0, layer.first_seen(p) - p + tokens) for p, tokens in held}
        lo = 0 if layer.sink else min(los)
        where = slice(len(self.places)) if self.in_order else self.places
        keys, values = (tails[where][:, heads, lo:end] for tails in copy.both)
        visible = None
        if not self.even or len(los) > 1 or layer.sink:
            visible = self._visible(layer, lo, end, q.device)
            # what no branch has written may be no number
            values = values.masked_fill(~visible[:, :, 0, :, None], 0)
        out, lse = partial_attention(
            q[heads].permute(2, 0, 1, 3), keys, values, layer, visible=visible
        )
        out = out.to(torch.promote_types(out.dtype, torch.float32))
        return out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)

    def _visible(self, layer: Layer, lo: int, end: int, device: torch.device) -> Tensor:
        """Which tokens from `lo` to `end` of its tail each branch sees, (branches, 1, 1,
        tokens)."""
        key = lo, end, layer.sight, device
        if key not in self._masks:
            positions = torch.tensor(self.positions, device=device)
            starts = positions - torch.tensor(self.filled, device=device)
            places = starts[:, None] + torch.arange(lo, end, device=device)
            visible = layer.sees(positions, places) & (places <= positions[:, None])
            self._masks[key] = visible[:, None, None]
        return self._masks[key]
