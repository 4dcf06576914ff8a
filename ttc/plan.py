"""An attention plan: which rows of one forward pass attend which runs of KV, and where new KV is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ttc.kernels import Layer, Partial, merge_, partial_attention, segment_attention
from ttc.memory import KV
from ttc.tree import Segment


@dataclass(frozen=True)
class Entry:
    """A run of `length` tokens at positions from `start` on, attended in full by a contiguous range of rows."""

    kv: KV
    start: int
    length: int
    rows: slice


class Plan(ABC):
    """The part that every plan shares: entries, and positions for the sliding window.

    positions: the position of each row's token, rows packed in depth-first order so that entries are contiguous.
    """

    def __init__(self, entries: Sequence[Entry], positions: Sequence[int]):
        self.entries = list(entries)
        self.positions = list(positions)
        self._spans: dict[tuple[int, int], tuple[int, Tensor | None] | None] = {}

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        """Store the new keys and values, then attend tails and entries.

        q: (kv_heads, groups, rows, dim); key, value: (kv_heads, rows, dim). Returns out (kv_heads, groups, rows,
        value_dim) and its log-sum-exp, both at least float32.
        """
        out, lse = self.attend_tails(layer, q, key, value)
        for index, entry in enumerate(self.entries):
            span = (0, None) if layer.window is None else self._span(index, layer.window, q.device)
            if span is None:
                continue
            lo, visible = span
            keys, values = entry.kv.keys[layer.index], entry.kv.values[layer.index]
            part = segment_attention(
                q[:, :, entry.rows], keys[:, lo : entry.length], values[:, lo : entry.length], layer, visible
            )
            merge_(out[:, :, entry.rows], lse[:, :, entry.rows], *part)
        return out, lse

    @abstractmethod
    def attend_tails(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        """Store the new keys and values, and attend what each branch alone has seen of its tail."""

    def _span(self, index: int, window: int, device: torch.device) -> tuple[int, Tensor | None] | None:
        """What a window leaves of an entry: (first key, (rows, keys) visibility or None for all), or None."""
        if (index, window) not in self._spans:
            entry = self.entries[index]
            positions = self.positions[entry.rows]
            lo = max(0, min(positions) - window + 1 - entry.start)
            span: tuple[int, Tensor | None] | None = None
            if lo < entry.length:
                visible = None
                if max(positions) - window + 1 > entry.start + lo:
                    keys = torch.arange(entry.start + lo, entry.start + entry.length, device=device)
                    visible = keys[None] > torch.tensor(positions, device=device)[:, None] - window
                span = lo, visible
            self._spans[index, window] = span
        return self._spans[index, window]


class DecodePlan(Plan):
    """One new token for each branch; the branches' tails grow in step, side by side in one buffer.

    tails: KV with one row per branch. filled: tokens that each tail holds before this pass.
    """

    def __init__(self, entries: Sequence[Entry], positions: Sequence[int], tails: KV, filled: int):
        super().__init__(entries, positions)
        self.tails = tails
        self.filled = filled

    def advance(self) -> None:
        """The pass is done: every tail has one token more."""
        self.filled += 1
        self.positions = [p + 1 for p in self.positions]
        self._spans.clear()

    def attend_tails(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        branches, end = q.shape[2], self.filled + 1
        keys, values = self.tails.keys[layer.index][:branches], self.tails.values[layer.index][:branches]
        keys[:, :, self.filled] = key.transpose(0, 1)
        values[:, :, self.filled] = value.transpose(0, 1)
        lo = 0 if layer.window is None else max(0, end - layer.window)
        out, lse = partial_attention(q.permute(2, 0, 1, 3), keys[:, :, lo:end], values[:, :, lo:end], layer)
        return _accumulator(out).permute(1, 2, 0, 3), lse.permute(1, 2, 0)


@dataclass(frozen=True)
class Piece:
    """Consecutive new tokens of one branch: `rows` of the pass, written to `kv` from `filled` on."""

    kv: KV
    start: int
    filled: int
    rows: slice


class ExtendPlan(Plan):
    """Many new tokens for each branch (prefill, scoring), causal among themselves."""

    def __init__(self, entries: Sequence[Entry], positions: Sequence[int], pieces: Sequence[Piece]):
        earlier = [Entry(p.kv, p.start, p.filled, p.rows) for p in pieces if p.filled]
        super().__init__([*entries, *earlier], positions)
        self.pieces = list(pieces)
        self._bands: dict[tuple[int, int], Tensor] = {}

    def attend_tails(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        kv_heads, groups, rows, _ = q.shape
        dtype = torch.promote_types(q.dtype, torch.float32)
        out = torch.empty(kv_heads, groups, rows, value.shape[-1], dtype=dtype, device=q.device)
        lse = torch.empty(kv_heads, groups, rows, dtype=dtype, device=q.device)
        for piece in self.pieces:
            k, v = key[:, piece.rows], value[:, piece.rows]
            new = slice(piece.filled, piece.filled + k.shape[1])
            piece.kv.keys[layer.index][:, new] = k
            piece.kv.values[layer.index][:, new] = v
            # heads that share keys become the heads of one batch entry: a view, nothing is repeated
            out[:, :, piece.rows], lse[:, :, piece.rows] = partial_attention(
                q[:, :, piece.rows],
                k[:, None].expand(-1, groups, -1, -1),
                v[:, None].expand(-1, groups, -1, -1),
                layer,
                causal=True,
                visible=self._band(k.shape[1], layer.window, q.device),
            )
        return out, lse

    def _band(self, rows: int, window: int | None, device: torch.device) -> Tensor | None:
        if window is None or rows <= window:
            return None
        if (rows, window) not in self._bands:
            ones = torch.ones(rows, rows, dtype=torch.bool, device=device)
            self._bands[rows, window] = ones.triu(1 - window)
        return self._bands[rows, window]


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


def depth_first(paths: Sequence[Sequence[Segment]]) -> list[int]:
    """An order of the paths in which all paths through any one segment are neighbours."""
    return sorted(range(len(paths)), key=lambda i: [segment.serial for segment in paths[i]])
