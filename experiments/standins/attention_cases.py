"""Passes over random KV, and what softmax attention written out in double precision makes of
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ttc.attention.kernels import Layer
from ttc.attention.pieces import Piece
from ttc.attention.plan import Plan, Run
from ttc.attention.reader import Fetch, Reader, Reads
from ttc.memory.kv import Codec, LayerKV, LayerShape
from ttc.memory.manager import Memory
from ttc.memory.storage import Places, Storage

Segments = list[tuple[int, int, int]]
"""(tokens, first row, end row), each row's from the root on. In an `ExtendCase` branches take the
place of rows."""

CPU = torch.device("cpu")


@dataclass
class GivenUnits:
    """A policy that reads what it is told."""

    memory: Memory
    units: Sequence[Fetch] = ()

    def stream(self, reads: Reads) -> Reader | None:
        return Reader(self.memory, self.units, reads) if self.units else None

    def passed(self, storages: Sequence[tuple[Storage, int]]) -> None:
        """Nothing is kept of it."""


class DecodeCase:
    """A decode step over random KV: pieces, what each row has written since the plan was made, and
    the new token of each row."""

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
        self.memory = Memory([shape], dtype, device)
        self.pieces: list[Piece] = []
        ends = [0] * rows
        for tokens, first, end in segments:
            piece = random_piece(self.memory, max(ends[first:end], default=0), tokens)
            self.pieces.append(Piece(piece.kv, piece.first, tokens, slice(first, end)))
            ends[first:end] = [piece.start + tokens] * (end - first)
        # a row goes on anywhere in its storage
        self.places = [
            Places(random_storage(self.memory, end - row % 3, row % 3 + filled + 3), row % 3, 1)
            for row, end in enumerate(ends)
        ]
        self.filled = filled
        self.positions = [end + filled for end in ends]
        self.q = torch.randn(shape.kv_heads, groups, rows, shape.key_dim).to(device, dtype)
        self.key = torch.randn(shape.kv_heads, rows, shape.key_dim).to(device, dtype)
        self.value = torch.randn(shape.kv_heads, rows, shape.value_dim).to(device, dtype)

    def pack(self, codec: Codec) -> None:
        """Keep the pieces' keys and values in bytes; what is right is made of what they hold."""
        self.memory.codec = codec
        for piece in self.pieces:
            self.memory.pack(piece.kv)

    def plan(self) -> Plan:
        positions = [position - self.filled for position in self.positions]
        runs = [Run(slice(row, row + 1), [place]) for row, place in enumerate(self.places)]
        plan = Plan(self.pieces, positions, runs)
        for _ in range(self.filled):
            plan.advance()
        return plan

    def own(self, row: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first tokens that a row has written since the plan was made."""
        storage, first, _ = self.places[row]
        return storage.span(on_device(storage), first, first + tokens)

    def expected(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Softmax attention in double precision, row by row."""
        outs, sums = [], []
        for row, position in enumerate(self.positions):
            runs = [numbers(p) for p in self.pieces if p.rows.start <= row < p.rows.stop]
            runs.append(self.own(row, self.filled))
            runs.append((self.key[:, row : row + 1], self.value[:, row : row + 1]))
            out, total = softmax_attention(layer, self.q[:, :, row], runs, position)
            outs.append(out)
            sums.append(total)
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
        for row in range(len(self.positions)):
            for own, new in zip(
                self.own(row, self.filled + 1), (self.key, self.value), strict=True
            ):
                assert torch.equal(own[:, self.filled], new[:, row])


class ExtendCase:
    """One pass over random KV. counts: the new tokens of each branch. block: the most tokens of a
    block of new KV. units: how what is not on the device is read."""

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
        self.memory = Memory([shape], dtype, device)
        self.units: Sequence[Fetch] = ()
        self.ends = [sum(counts[:i]) for i in range(len(counts) + 1)]
        self.pieces: list[Piece] = []
        self.paths: list[list[tuple[Tensor, ...]]] = [[] for _ in counts]
        length = [0] * len(counts)
        for tokens, first, end in segments:
            piece = random_piece(self.memory, max(length[first:end]), tokens)
            rows = slice(self.ends[first], self.ends[end])
            self.pieces.append(Piece(piece.kv, piece.first, tokens, rows))
            for branch in range(first, end):
                self.paths[branch].append(numbers(piece))
            length[first:end] = [piece.start + tokens] * (end - first)
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
        self.runs: list[Run] = []
        for a, b in pairwise(self.ends):
            sizes = [min(block, b - first) for first in range(a, b, block)]
            places = [Places(random_storage(self.memory, 0, n + 2), 1, n) for n in sizes]
            self.runs.append(Run(slice(a, b), places))

    def plan(self) -> Plan:
        policy = GivenUnits(self.memory, self.units)
        return Plan(self.pieces, self.positions, self.runs, policy)

    def expected(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Softmax attention in double precision, row by row."""
        outs, sums = [], []
        for branch, path in enumerate(self.paths):
            for row in range(self.ends[branch], self.ends[branch + 1]):
                new = slice(self.ends[branch], row + 1)
                runs = [*path, (self.key[:, new], self.value[:, new])]
                out, total = softmax_attention(layer, self.q[:, :, row], runs, self.positions[row])
                outs.append(out)
                sums.append(total)
        return torch.stack(outs, 2), torch.stack(sums, 2)

    def check(self, layer: Layer, bound: float, fused: bool = True) -> None:
        with self.plan() as plan:
            found = plan.attend(layer, self.q, self.key, self.value)
        for tensor, right in zip(found, self.expected(layer), strict=True):
            assert tensor.shape == right.shape
            torch.testing.assert_close(tensor.double(), right, atol=bound, rtol=bound)
        assert (plan.fused is not None) == fused
        for run in self.runs:
            stored = []
            for storage, first, count in run.places:
                self.memory.link.wait_and_ignore(storage.written)
                copy = storage.device[0] or storage.host[0]
                assert copy is not None
                stored.append(storage.span(copy, first, first + count))
            for kept, new in zip(zip(*stored, strict=True), (self.key, self.value), strict=True):
                assert torch.equal(torch.cat(kept, 1), new[:, run.rows])


def random_storage(memory: Memory, start: int, room: int) -> Storage:
    """A storage whose whole room is written with random numbers."""
    storage = memory.begin(start, room)
    storage.filled = room
    for tensor in on_device(storage).both:
        tensor.copy_(torch.randn(tensor.shape))
    return storage


def random_piece(memory: Memory, start: int, tokens: int) -> Piece:
    """Random KV at a position, in the midst of a storage."""
    first = min(start, 2)
    return Piece(random_storage(memory, start - first, first + tokens + 1), first, tokens, slice(0))


def on_device(storage: Storage) -> LayerKV:
    copy = storage.device[0]
    assert copy is not None
    return copy


def numbers(piece: Piece) -> tuple[Tensor, ...]:
    """Keys and values of a piece in double precision."""
    storage = piece.kv
    both = storage.span(on_device(storage), piece.first, piece.first + piece.length)
    return tuple(storage.read(part, torch.float64).double() for part in both)


def softmax_attention(
    layer: Layer, q: Tensor, runs: Sequence[tuple[Tensor, ...]], position: int
) -> tuple[Tensor, Tensor]:
    """What a row sees in double precision. q: (kv_heads, groups, dim). runs: keys and values at
    positions 0, 1, 2, ..."""
    keys, values = (torch.cat([run[i].double() for run in runs], 1) for i in (0, 1))
    scores = torch.einsum("hgd,htd->hgt", q.double(), keys) * layer.scale
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    if layer.window is not None:
        scores[..., : max(0, position - layer.window + 1)] = float("-inf")
    if layer.chunk is not None:
        scores[..., : position // layer.chunk * layer.chunk] = float("-inf")
    out = torch.einsum("hgt,htd->hgd", scores.softmax(-1), values)
    return out, scores.logsumexp(-1)
