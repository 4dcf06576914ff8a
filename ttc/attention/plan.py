"""An attention plan: which rows of one forward pass attend which runs of KV, and where new KV is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from ttc.attention.entry import Entry
from ttc.attention.fused import FusedAttention, NewKV, fused_attention
from ttc.attention.kernels import Layer, Partial, merge_, partial_attention, segment_attention
from ttc.attention.stream import KVReader
from ttc.memory.kv import KV, LayerKV
from ttc.memory.manager import KVMemory
from ttc.memory.states import StateBatch
from ttc.tree.segment import Segment


class Plan(ABC):
    """The part that every plan shares: entries, and positions for the sliding window.

    positions: the position of each row's token, rows packed in depth-first order so that entries are contiguous.
    states: of models with recurrent layers, the states of the pass's sequences.
    """

    def __init__(self, entries: Sequence[Entry], positions: Sequence[int], stream: KVReader | None = None):
        self.entries = list(entries)
        self.positions = list(positions)
        self.stream = stream
        self._spans: dict[tuple[int, Layer, torch.device], tuple[int, Tensor | None] | None] = {}
        self._kernels: dict[torch.device, FusedAttention | None] = {}
        self.states: Sequence[StateBatch] = ()
        self._turns: Counter[tuple[int, ...]] = Counter()

    @property
    def fused(self) -> FusedAttention | None:
        """The kernel of the device that the first layers run on; None before they ran, and where there is none."""
        return next(iter(self._kernels.values()), None)

    def turn(self, layers: tuple[int, ...]) -> int:
        """The next of the layers that a module serves one after the other, from the first one again in a next pass."""
        self._turns[layers] += 1
        return layers[(self._turns[layers] - 1) % len(layers)]

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        """Store the new keys and values, then attend tails and entries: what is on the device, then what streams in.

        q: (kv_heads, groups, rows, dim); key, value: (kv_heads, rows, dim). Returns out (kv_heads, groups, rows,
        value_dim) and its log-sum-exp, both at least float32.
        """
        if q.device not in self._kernels:  # layers may run on several devices
            self._kernels[q.device] = self.lower(q, value)
        fused = self._kernels[q.device]
        views = self.stream.views.get(layer.index, ()) if self.stream is not None else ()
        if fused is not None and fused.takes(layer, q) and not views:
            out, lse = self.attend_fused(fused, layer, q, key, value)
            absent = fused.lowered.absent_from(layer.index)
            for index in fused.lowered.apart:
                if index not in absent:
                    self._attend(layer, index, q, self.entries[index].kv.on_device(layer.index), out, lse)
        else:
            out, lse = self.attend_tails(layer, q, key, value)
            for heads, view in views:
                self.attend_tails_again(view.of(layer), heads, q, key, value, out[heads], lse[heads])
            absent = set()
            for index, entry in enumerate(self.entries):
                if (copy := entry.kv.readable(layer.index)) is not None:
                    self._attend(layer, index, q, copy, out, lse)
                else:
                    absent.add(index)
        if self.stream is not None:
            for unit, copies in self.stream.read(layer.index):
                seen = layer if unit.view is None else unit.view.of(layer)
                for index, copy in copies.items():
                    self._attend(seen, index, q[unit.heads], copy, out[unit.heads], lse[unit.heads])
                absent.difference_update(copies)
        if absent and (self.stream is None or not self.stream.sparse):
            self._expect_hidden(layer, absent, q.device)
        return out, lse

    def _expect_hidden(self, layer: Layer, absent: Iterable[int], device: torch.device) -> None:
        """What was not read must lie outside the layer's window: a wrong answer is worse than none."""
        needed = (index for index in absent if self.entries[index].rows.start < self.entries[index].rows.stop)
        for index in needed:
            if self._span(index, layer, device) is not None:
                raise RuntimeError(f"entry {index} of layer {layer.index} is neither on the device nor in the stream")

    def _attend(self, layer: Layer, index: int, q: Tensor, copy: LayerKV, out: Tensor, lse: Tensor) -> None:
        """Fold one entry into (out, lse), which have the heads that q and the copy have."""
        entry = self.entries[index]
        span = (0, None) if layer.sees_all else self._span(index, layer, q.device)
        if span is None:
            return
        (lo, visible), rows = span, entry.rows
        keys, values = copy.keys[:, lo : entry.length], copy.values[:, lo : entry.length]
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
    def lower(self, q: Tensor, value: Tensor) -> FusedAttention | None:
        """The plan for a kernel that attends all at once, None to go operation by operation. q, value: as in
        `attend`."""

    @abstractmethod
    def attend_fused(self, fused: FusedAttention, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        """Store the new keys and values, and attend all that is on the device, in one call."""

    @abstractmethod
    def attend_tails(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        """Store the new keys and values, and attend what each branch alone has seen of its tail."""

    @abstractmethod
    def attend_tails_again(
        self, layer: Layer, heads: slice, q: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> None:
        """Put what `heads` alone see of the tails, as `layer` says, into (out, lse), which have these heads alone."""

    def _span(self, index: int, layer: Layer, device: torch.device) -> tuple[int, Tensor | None] | None:
        """What a layer sees of an entry: (first key, (rows, keys) visibility or None for all), or None."""
        key = index, replace(layer, index=0), device
        if key not in self._spans:
            entry = self.entries[index]
            positions = self.positions[entry.rows]
            reach = replace(layer, recent=None) if entry.start < layer.sink else layer
            lo = max(0, reach.first_seen(min(positions)) - entry.start)
            span: tuple[int, Tensor | None] | None = None
            if lo < entry.length:
                visible = None
                if layer.first_seen(max(positions)) > entry.start + lo:
                    keys = torch.arange(entry.start + lo, entry.start + entry.length, device=device)
                    visible = layer.sees(torch.tensor(positions, device=device), keys)
                span = lo, visible
            self._spans[key] = span
        return self._spans[key]


class DecodePlan(Plan):
    """One new token for each branch, whose tails lie in one buffer.

    tails: KV with a row for each tail. filled: the tokens that each branch's tail holds before this pass, one number if
    all have as many. places: the row of each branch's tail, None for the branch's own number. Tails that are equally
    long and in order are attended without a mask.
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
        self._masks: dict[tuple[int, int, Layer, torch.device], Tensor] = {}

    def advance(self) -> None:
        """The pass is done: every tail has one token more."""
        self.filled = [tokens + 1 for tokens in self.filled]
        self.positions = [p + 1 for p in self.positions]
        self._spans.clear()
        self._masks.clear()
        for fused in self._kernels.values():
            if fused is not None:
                fused.advance()

    def lower(self, q: Tensor, value: Tensor) -> FusedAttention | None:
        own = [(row, row + 1) for row in range(len(self.positions))]
        return fused_attention(self.entries, own, self.positions, q, value, (self.places, self.filled))

    def attend_fused(self, fused: FusedAttention, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        copy = self._tails(layer, key, value)
        return fused.attend(layer, q, copy.keys, copy.values, (key, value))

    def _tails(self, layer: Layer, key: Tensor, value: Tensor) -> LayerKV:
        """A layer's tails on the device. Where they live on the host, the new keys and values are sent there."""
        copy = self.tails.device[layer.index]
        if copy is None:
            assert self.stream is not None
            copy = self.stream.staged_tails(layer.index)
            for rows, places in self._neighbours:
                where = places, slice(None), self.filled[rows.start]
                new = (x[:, rows].transpose(0, 1) for x in (key, value))
                self.stream.memory.store(self.tails, layer.index, where, *new)
        return copy

    @cached_property
    def _neighbours(self) -> list[tuple[slice, slice]]:
        """Rows whose tails are neighbours and equally long, and the places of these."""
        places, filled = self.places, self.filled
        ends = [
            row for row in range(1, len(places)) if (places[row], filled[row]) != (places[row - 1] + 1, filled[row - 1])
        ]
        spans = pairwise([0, *ends, len(places)])
        return [(slice(first, end), slice(places[first], places[first] + end - first)) for first, end in spans]

    def attend_tails(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        copy, end = self._tails(layer, key, value), max(self.filled) + 1
        for rows, places in self._neighbours:
            for tails, new in zip(copy.both, (key, value), strict=True):
                tails[places, :, self.filled[rows.start]] = new[:, rows].transpose(0, 1)
        held = zip(self.positions, self.filled, strict=True)
        los = {0} if layer.sees_all else {max(0, layer.first_seen(p) - p + tokens) for p, tokens in held}
        visible = None if self.even and len(los) == 1 else self._visible(layer, min(los), end, q.device)
        out, lse = self._attend_copy(layer, slice(None), copy, q, slice(min(los), end), visible)
        return _accumulator(out).permute(1, 2, 0, 3), lse.permute(1, 2, 0)

    def attend_tails_again(
        self, layer: Layer, heads: slice, q: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> None:
        copy, end = self.tails.on_device(layer.index), max(self.filled) + 1
        visible = self._visible(layer, 0, end, q.device)
        part = self._attend_copy(layer, heads, copy, q[heads], slice(end), visible)
        out.copy_(part[0].permute(1, 2, 0, 3))
        lse.copy_(part[1].permute(1, 2, 0))

    def _attend_copy(
        self, layer: Layer, heads: slice, copy: LayerKV, q: Tensor, tokens: slice, visible: Tensor | None
    ) -> Partial:
        """Each branch attends `tokens` of its tail. q: (heads, groups, branches, dim). visible: see `_visible`.

        Returns out (branches, heads, groups, value_dim) and its log-sum-exp.
        """
        where = slice(len(self.places)) if self.in_order else self.places
        keys, values = (tails[where][:, heads, tokens] for tails in copy.both)
        if visible is not None:  # what no branch has written yet may be no number
            values = values.masked_fill(~visible[:, :, 0, :, None], 0)
        return partial_attention(q.permute(2, 0, 1, 3), keys, values, layer, visible=visible)

    def _visible(self, layer: Layer, lo: int, end: int, device: torch.device) -> Tensor:
        """Which tokens from `lo` to `end` of its tail each branch sees, (branches, 1, 1, tokens)."""
        key = lo, end, replace(layer, index=0), device
        if key not in self._masks:
            last = torch.tensor(self.filled, device=device)
            starts = torch.tensor(self.positions, device=device) - last
            places = starts[:, None] + torch.arange(lo, end, device=device)
            visible = layer.sees(starts + last, places) & (places <= (starts + last)[:, None])
            self._masks[key] = visible[:, None, None]
        return self._masks[key]


@dataclass(frozen=True)
class Piece:
    """Consecutive new tokens of one branch, `rows` of the pass. blocks: where they are stored: (KV, its first token to
    fill, how many), in order."""

    rows: slice
    blocks: Sequence[tuple[KV, int, int]]


class ExtendPlan(Plan):
    """Many new tokens for each branch (prefill, scoring), causal among themselves."""

    def __init__(
        self,
        entries: Sequence[Entry],
        positions: Sequence[int],
        pieces: Sequence[Piece],
        memory: KVMemory | None = None,
        stream: KVReader | None = None,
    ):
        super().__init__(entries, positions, stream)
        self.pieces, self.memory = list(pieces), memory
        self.new: list[NewKV] = []
        for piece in self.pieces:
            row = piece.rows.start
            for kv, first, count in piece.blocks:
                self.new.append((row, count, kv, first))
                row += count
        self._bands: dict[tuple[int, int, Layer, torch.device], Tensor] = {}

    def lower(self, q: Tensor, value: Tensor) -> FusedAttention | None:
        own = [(piece.rows.start, piece.rows.stop) for piece in self.pieces]
        return fused_attention(self.entries, own, self.positions, q, value, new=self.new)

    def attend_fused(self, fused: FusedAttention, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        self._store(layer.index, key, value, on_device=not fused.store(layer.index, key, value))
        # each row may begin a run of keys, so owners are as far apart as tokens
        new = (x if x.stride(-1) == 1 else x.contiguous() for x in (key, value))
        own_keys, own_values = (x.as_strided((1, *x.shape), (x.stride(1), *x.stride())) for x in new)
        return fused.attend(layer, q, own_keys, own_values, None)

    def attend_tails(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        kv_heads, groups, rows, _ = q.shape
        dtype = torch.promote_types(q.dtype, torch.float32)
        out = torch.empty(kv_heads, groups, rows, value.shape[-1], dtype=dtype, device=q.device)
        lse = torch.empty(kv_heads, groups, rows, dtype=dtype, device=q.device)
        self._store(layer.index, key, value)
        self._attend_pieces(layer, q, key, value, out, lse)
        return out, lse

    def attend_tails_again(
        self, layer: Layer, heads: slice, q: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> None:
        self._attend_pieces(layer, q[heads], key[heads], value[heads], out, lse)

    def _attend_pieces(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor) -> None:
        groups = q.shape[1]
        for piece in self.pieces:
            k, v = key[:, piece.rows], value[:, piece.rows]
            # heads that share keys become the heads of one batch entry: a view, nothing is repeated
            out[:, :, piece.rows], lse[:, :, piece.rows] = partial_attention(
                q[:, :, piece.rows],
                k[:, None].expand(-1, groups, -1, -1),
                v[:, None].expand(-1, groups, -1, -1),
                layer,
                causal=True,
                visible=self._visible(piece, layer, q.device),
            )

    def _store(self, layer: int, key: Tensor, value: Tensor, on_device: bool = True) -> None:
        """Write new keys and values to the host copies of where they stay, and to the device copies if `on_device`."""
        for row, count, kv, first in self.new:
            copy = kv.readable(layer) if on_device else None
            to_host = self.memory if kv.host[layer] is not None and layer not in kv.acts else None
            if copy is not None or to_host is not None:
                k, v = key[:, row : row + count], value[:, row : row + count]
                where = slice(None), slice(first, first + count)
                if copy is not None:
                    copy.keys[where], copy.values[where] = k, v
                if to_host is not None:
                    to_host.store(kv, layer, where, k, v)

    def _visible(self, piece: Piece, layer: Layer, device: torch.device) -> Tensor | None:
        """What the rows of a piece see of each other beside what causality hides; None for all."""
        positions = self.positions[piece.rows]
        if layer.first_seen(positions[-1]) <= positions[0]:
            return None
        by_place = layer.sink or layer.chunk is not None
        key = len(positions), positions[0] if by_place else 0, replace(layer, index=0), device
        if key not in self._bands:
            places = torch.tensor(positions, device=device)
            self._bands[key] = layer.sees(places, places)
        return self._bands[key]


def _accumulator(out: Tensor) -> Tensor:
    return out.to(torch.promote_types(out.dtype, torch.float32))


def shared_entries(paths: Sequence[Sequence[Segment]], counts: Sequence[int]) -> list[Entry]:
    """The entries for branches whose root-to-leaf segments are `paths`, with `counts` packed rows each.

    The paths must be in depth-first order (see `depth_first`).
    """
    spans: dict[Segment, list[int]] = {}
    row = 0
    for path, rows in zip(paths, counts, strict=True):
        for segment in path:
            spans.setdefault(segment, [row, row])[1] = row + rows
        row += rows
    return [Entry(s.storage, s.start, len(s.tokens), slice(first, last)) for s, (first, last) in spans.items()]


def private_entries(
    paths: Sequence[Sequence[Segment]], counts: Sequence[int], copies: Mapping[KV, Sequence[KV]] | None = None
) -> list[Entry]:
    """Like `shared_entries`, but nothing is shared: an entry for each path and segment, of the next of its `copies`."""
    entries = []
    taken: Counter[KV] = Counter()
    row = 0
    for path, rows in zip(paths, counts, strict=True):
        for segment in path:
            kv = segment.storage
            mine = copies[kv][taken[kv]] if copies else kv
            taken[kv] += 1
            entries.append(Entry(mine, segment.start, len(segment.tokens), slice(row, row + rows)))
        row += rows
    return entries


def depth_first(paths: Sequence[Sequence[Segment]]) -> list[int]:
    """An order of the paths in which all paths through any one segment are neighbours."""
    return sorted(range(len(paths)), key=lambda i: [segment.serial for segment in paths[i]])
