"""The plan of a pass that checks drafts: some new tokens for each branch, in its tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ttc.attention.entry import Entry
from ttc.attention.fused import FusedAttention, fused_attention
from ttc.attention.kernels import Layer, Partial, partial_attention
from ttc.attention.plan import Plan
from ttc.memory.kv import KV, LayerKV


@dataclass(frozen=True)
class TailRows:
    """Consecutive new tokens of one branch. rows: of the pass. place: of its tail. filled: the
    tokens that its tail holds before the pass."""

    rows: slice
    place: int
    filled: int

    @property
    def end(self) -> int:
        tokens: int = self.rows.stop - self.rows.start
        return self.filled + tokens


class DraftPlan(Plan):
    """Some new tokens for each branch, causal among themselves, whose KV goes to the ends of tails
    that lie in one buffer on the device. A plan is good for one pass."""

    def __init__(
        self,
        entries: Sequence[Entry],
        positions: Sequence[int],
        tails: KV,
        runs: Sequence[TailRows],
    ):
        super().__init__(entries, positions)
        self.tails = tails
        self.runs = list(runs)

    def kernel_for(self, q: Tensor) -> FusedAttention | None:
        spans = [(run.rows.start, run.rows.stop) for run in self.runs]
        places, filled = list[int](), list[int]()
        for run in self.runs:
            places += [run.place] * (run.end - run.filled)
            filled += range(run.filled, run.end)
        return fused_attention(self.entries, spans, self.positions, q, (places, filled))

    def attend_fused(
        self, fused: FusedAttention, layer: Layer, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        self.store(layer.index, key, value)
        return fused.attend(layer, q, *self._tails(layer.index).both, None)

    def _tails(self, layer: int) -> LayerKV:
        copy = self.tails.device[layer]
        assert copy is not None  # who checks drafts keeps tails on the device
        return copy

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        for tails, new in zip(self._tails(layer).both, (key, value), strict=True):
            for run in self.runs:
                tails[run.place, :, run.filled : run.end] = new[:, run.rows]

    def attend_new(
        self, layer: Layer, heads: slice, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        parts = [self._attend_run(run, layer, heads, q[heads]) for run in self.runs]
        outs, sums = zip(*parts, strict=True)
        out = torch.cat(outs, 2)
        return out.to(torch.promote_types(out.dtype, torch.float32)), torch.cat(sums, 2)

    def _attend_run(self, run: TailRows, layer: Layer, heads: slice, q: Tensor) -> Partial:
        positions = torch.tensor(self.positions[run.rows], device=q.device)
        places = torch.arange(run.end, device=q.device) + (positions[0] - run.filled)
        visible = layer.sees(positions, places) & (places <= positions[:, None])
        copy = self._tails(layer.index)
        keys, values = (tails[run.place, heads, : run.end] for tails in copy.both)
        groups = q.shape[1]
        return partial_attention(
            q[:, :, run.rows],
            keys[:, None].expand(-1, groups, -1, -1),
            values[:, None].expand(-1, groups, -1, -1),
            layer,
            visible=visible,
        )
