"""The plan of a pass over many new tokens of each branch: prefill and scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttc.attention.entry import Entry
from ttc.attention.fused import FusedAttention, NewKV, fused_attention
from ttc.attention.kernels import Layer, Partial, VisibleRange, partial_attention
from ttc.attention.plan import Plan
from ttc.memory.kv import KV
from ttc.memory.manager import KVMemory

if TYPE_CHECKING:
    from ttc.attention.stream import KVReader


@dataclass(frozen=True)
class Piece:
    """Consecutive new tokens of one branch, `rows` of the pass. blocks: where they are stored: (KV,
    its first token to fill, how many), in order."""

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
        self.pieces = list(pieces)
        self.memory = memory
        self.new: list[NewKV] = []
        for piece in self.pieces:
            row = piece.rows.start
            for kv, first, count in piece.blocks:
                self.new.append((row, count, kv, first))
                row += count
        self._bands: dict[tuple[int, int, VisibleRange, torch.device], Tensor] = {}

    def kernel_for(self, q: Tensor) -> FusedAttention | None:
        runs = [(piece.rows.start, piece.rows.stop) for piece in self.pieces]
        return fused_attention(self.entries, runs, self.positions, q, new=self.new)

    def attend_fused(
        self, fused: FusedAttention, layer: Layer, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        self.store(layer.index, key, value, on_device=not fused.store(layer.index, key, value))
        # each row may begin a run of keys, so owners are as far apart as tokens
        new = (x if x.stride(-1) == 1 else x.contiguous() for x in (key, value))
        keys, values = (x.as_strided((1, *x.shape), (x.stride(1), *x.stride())) for x in new)
        return fused.attend(layer, q, keys, values, None)

    def store(self, layer: int, key: Tensor, value: Tensor, on_device: bool = True) -> None:
        """on_device: to the device copies, too, and not to the host copies alone."""
        for row, count, kv, first in self.new:
            copy = kv.device[layer] if on_device else None
            to_host = self.memory if kv.host[layer] is not None else None
            if layer in kv.acts or (copy is None and to_host is None):
                continue
            k, v = key[:, row : row + count], value[:, row : row + count]
            where = slice(None), slice(first, first + count)
            if copy is not None:
                kv.write(copy.keys[where], k)
                kv.write(copy.values[where], v)
            if to_host is not None:
                to_host.store(kv, layer, where, k, v)

    def attend_new(
        self, layer: Layer, heads: slice, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        q = q[heads]
        key = key[heads]
        value = value[heads]
        kv_heads, groups, rows, _ = q.shape
        dtype = torch.promote_types(q.dtype, torch.float32)
        out = torch.empty(kv_heads, groups, rows, value.shape[-1], dtype=dtype, device=q.device)
        lse = torch.empty(kv_heads, groups, rows, dtype=dtype, device=q.device)
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
        return out, lse

    def _visible(self, piece: Piece, layer: Layer, device: torch.device) -> Tensor | None:
        """What the rows of a piece see of each other besides what causality hides; None for all."""
        positions = self.positions[piece.rows]
        if layer.first_seen(positions[-1]) <= positions[0]:
            return None
        by_place = layer.sink or layer.chunk is not None
        key = len(positions), positions[0] if by_place else 0, layer.sight, device
        if key not in self._bands:
            places = torch.tensor(positions, device=device)
            self._bands[key] = layer.sees(places, places)
        return self._bands[key]
