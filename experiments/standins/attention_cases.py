"""Passes over random KV, and what softmax attention written out in double precision makes of
them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor
from ttc.attention.entry import Entry
from ttc.attention.extend_plan import ExtendPlan, Piece
from ttc.attention.stream import KVReader

from ttc.attention.kernels import Layer
from ttc.attention.plan import DecodePlan
from ttc.memory.kv import KV, Codec, LayerShape
from ttc.memory.manager import KVMemory

Segments = list[tuple[int, int, int]]
"""(tokens, first row, end row), each row's from the root on. In an `ExtendCase` branches take the
place of rows."""

CPU = torch.device("cpu")


class DecodeCase:
    """A decode step over random KV: entries, tails, and the new token of each row."""

    def __init__(
        self,
        shape: LayerShape,
        groups: int,
        segments: Segments,
        rows: int,
        filled: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ):
        torch.manual_seed(0)
        self.memory = KVMemory([shape], dtype, device)
        self.entries: list[Entry] = []
        ends = [0] * rows
        for tokens, first, end in segments:
            kv = self._filled(self.memory.allocate(tokens))
            self.entries.append(
                Entry(kv, max(ends[first:end], default=0), tokens, slice(first, end))
            )
            ends[first:end] = [self.entries[-1].start + tokens] * (end - first)
        self.tails = self._filled(self.memory.allocate(filled + 3, rows))
        self.filled, self.positions = filled, [end + filled for end in ends]
        self.q = torch.randn(shape.kv_heads, groups, rows, shape.key_dim).to(device, dtype)
        self.key = torch.randn(shape.kv_heads, rows, shape.key_dim).to(device, dtype)
        self.value = torch.randn(shape.kv_heads, rows, shape.value_dim).to(device, dtype)

    @staticmethod
    def _filled(kv: KV) -> KV:
        for tensor in kv.on_device(0).both:
            tensor.copy_(torch.randn(tensor.shape))
        return kv

    def pack(self, codec: Codec) -> None:
        """Keep the entries' keys and values in bytes; what is right is made of what they hold."""
        memory = self.memory
        self.memory = KVMemory(memory.shapes, memory.dtype, self.q.device, codec=codec)
        for place, entry in enumerate(self.entries):
            kv = self.memory.allocate(entry.length)
            pairs = zip(kv.on_device(0).both, entry.kv.on_device(0).both, strict=True)
            for target, numbers in pairs:
                kv.write(target, numbers)
            self.entries[place] = replace(entry, kv=kv)

    def plan(self) -> DecodePlan:
        return DecodePlan(self.entries, self.positions, self.tails, self.filled)

    def expected(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Softmax attention in double precision, row by row."""
        outs, sums = [], []
        for row, position in enumerate(self.positions):
            mine = [e for e in self.entries if e.rows.start <= row < e.rows.stop]
            tail = [tensor[row, :, : self.filled] for tensor in self.tails.on_device(0).both]
            new = self.key[:, row : row + 1], self.value[:, row : row + 1]
            runs = [*([e.kv.read(x, torch.float64) for x in e.kv.on_device(0).both] for e in mine)]
            runs += [tail, list(new)]
            keys, values = (torch.cat([run[i].double() for run in runs], 1) for i in (0, 1))
            scores = torch.einsum("hgd,htd->hgt", self.q[:, :, row].double(), keys) * layer.scale
            if layer.softcap is not None:
                scores = torch.tanh(scores / layer.softcap) * layer.softcap
            if layer.window is not None:  # the keys are those at positions 0, 1, 2, ...
                scores[..., : max(0, position - layer.window + 1)] = float("-inf")
            if layer.chunk is not None:
                scores[..., : position // layer.chunk * layer.chunk] = float("-inf")
            outs.append(torch.einsum("hgt,htd->hgd", scores.softmax(-1), values))
            sums.append(scores.logsumexp(-1))
        return torch.stack(outs, 2), torch.stack(sums, 2)

    def check(self, layer: Layer, bound: float, fused: bool = True) -> None:
        expected = self.expected(layer)
        plan = self.plan()
        for found, right in zip(
            plan.attend(layer, self.q, self.key, self.value), expected, strict=True
        ):
            assert found.shape == right.shape
            torch.testing.assert_close(found.double(), right, atol=bound, rtol=bound)
        assert (plan.fused is not None) == fused
        keys, values = self.tails.on_device(0).both
        assert torch.equal(keys[:, :, self.filled], self.key.transpose(0, 1))
        assert torch.equal(values[:, :, self.filled], self.value.transpose(0, 1))


class ExtendCase:
    """One pass over random KV. counts: the new tokens of each branch. block: the most tokens of a
    block of new KV."""

    def __init__(
        self,
        shape: LayerShape,
        groups: int,
        segments: Segments,
        counts: list[int],
        dtype: torch.dtype,
        block: int = 9,
        device: torch.device = CPU,
    ):
        torch.manual_seed(0)
        self.memory = KVMemory([shape], dtype, device)
        self.ends = [sum(counts[:i]) for i in range(len(counts) + 1)]
        self.entries: list[Entry] = []
        self.paths: list[list[tuple[Tensor, ...]]] = [[] for _ in counts]
        length = [0] * len(counts)
        for tokens, first, end in segments:
            kv = self.memory.allocate(tokens)
            for tensor in kv.on_device(0).both:
                tensor.copy_(torch.randn(tensor.shape))
            rows = slice(self.ends[first], self.ends[end])
            self.entries.append(Entry(kv, max(length[first:end]), tokens, rows))
            for branch in range(first, end):
                self.paths[branch].append(tuple(tensor.double() for tensor in kv.on_device(0).both))
            length[first:end] = [self.entries[-1].start + tokens] * (end - first)
        self.positions = [
            p for at, count in zip(length, counts, strict=True) for p in range(at, at + count)
        ]
        total = self.ends[-1]
        # as a model gives them: heads side by side in each row
        self.q = (
            torch.randn(total, shape.kv_heads, groups, shape.key_dim)
            .to(device, dtype)
            .permute(1, 2, 0, 3)
        )
        self.key = (
            torch.randn(total, shape.kv_heads, shape.key_dim).to(device, dtype).transpose(0, 1)
        )
        self.value = (
            torch.randn(total, shape.kv_heads, shape.value_dim).to(device, dtype).transpose(0, 1)
        )
        self.pieces: list[Piece] = []
        for a, b in pairwise(self.ends):
            sizes = [min(block, b - first) for first in range(a, b, block)]
            self.pieces.append(
                Piece(slice(a, b), [(self.memory.allocate(n + 2), 1, n) for n in sizes])
            )

    def plan(self, stream: KVReader | None = None) -> ExtendPlan:
        return ExtendPlan(self.entries, self.positions, self.pieces, self.memory, stream)

    def expected(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Softmax attention in double precision, row by row."""
        outs, sums = [], []
        for branch, path in enumerate(self.paths):
            for row in range(self.ends[branch], self.ends[branch + 1]):
                new = slice(self.ends[branch], row + 1)
                runs = [*path, (self.key[:, new].double(), self.value[:, new].double())]
                keys, values = (torch.cat([run[i] for run in runs], 1) for i in (0, 1))
                scores = (
                    torch.einsum("hgd,htd->hgt", self.q[:, :, row].double(), keys) * layer.scale
                )
                if layer.softcap is not None:
                    scores = torch.tanh(scores / layer.softcap) * layer.softcap
                if layer.window is not None:  # the keys are those at positions 0, 1, 2, ...
                    scores[..., : max(0, self.positions[row] - layer.window + 1)] = float("-inf")
                if layer.chunk is not None:
                    scores[..., : self.positions[row] // layer.chunk * layer.chunk] = float("-inf")
                outs.append(torch.einsum("hgt,htd->hgd", scores.softmax(-1), values))
                sums.append(scores.logsumexp(-1))
        return torch.stack(outs, 2), torch.stack(sums, 2)

    def check(
        self, layer: Layer, bound: float, fused: bool = True, stream: KVReader | None = None
    ) -> None:
        plan = self.plan(stream)
        found = plan.attend(layer, self.q, self.key, self.value)
        for tensor, right in zip(found, self.expected(layer), strict=True):
            assert tensor.shape == right.shape
            torch.testing.assert_close(tensor.double(), right, atol=bound, rtol=bound)
        assert (plan.fused is not None) == fused
        for piece in self.pieces:
            for kv, _, _ in piece.blocks:
                self.memory.wait_kv_on_host(kv)
            for new, i in ((self.key, 0), (self.value, 1)):
                stored = [
                    _stored(kv, i)[:, first : first + count] for kv, first, count in piece.blocks
                ]
                assert torch.equal(torch.cat(stored, 1), new[:, piece.rows])


def _stored(kv: KV, which: int) -> Tensor:
    copy = kv.device[0] or kv.host[0]
    assert copy is not None
    return copy.both[which]
