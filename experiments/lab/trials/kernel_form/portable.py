"""The portable numba candidate: LLVM's vectors as long as the processor's, and only plain
operations on them.

What the processor multiplies as pairs of bfloat16 numbers is the one instruction that has a name of
its own for each kind of processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import torch
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from experiments.lab.trials.kernel_form.call import (
    BLOCK,
    COLUMNS,
    GROUP,
    NEXT,
    OUT,
    PANEL,
    PARAMETERS,
    ROWS,
    SCRATCH,
    THREADS,
    WIDTH,
    Candidate,
    W,
    X,
)
from ttc.attention.cpu_vectors import _BFloat, address_of, fetch_add, integers

SLICE = 2048
"""Bytes of rows that are multiplied at a time, so that they stay in the nearest cache."""
COUNT = len(PARAMETERS)
FLAGS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
"""Sums are added up in the order that is written."""

I32, I64, FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()


@dataclass(frozen=True)
class Processor:
    """lanes: float32 numbers of a vector. cells: sums that are held in registers. pairs: LLVM's
    name of the instruction that multiplies pairs of bfloat16 numbers; empty where there is none."""

    lanes: int
    cells: int
    pairs: str = ""


PROCESSORS = {
    "AVX512 BF16": Processor(16, 16, "llvm.x86.avx512bf16.dpbf16ps.512"),
    "AVX2": Processor(8, 8),
    "NEON": Processor(4, 16),
    "NEON BF16": Processor(4, 16, "llvm.aarch64.neon.bfdot.v4f32.v8bf16"),
}


class Emitter:
    """Emits a tile of products for one processor and one type of numbers."""

    def __init__(self, builder: Any, processor: Processor, short: bool):
        self.builder, self.lanes = builder, processor.lanes
        self.floats = ir.VectorType(FLOAT, self.lanes)
        self.bits = ir.VectorType(I32, self.lanes)
        self.widens = short and not processor.pairs
        self.vector_bytes = 4 * self.lanes
        self.loaded = (
            ir.VectorType(_BFloat(), 2 * self.lanes) if short and processor.pairs else self.floats
        )
        self.pairs = None
        if short and processor.pairs:
            kind = ir.FunctionType(self.floats, [self.floats, self.loaded, self.loaded])
            self.pairs = cgutils.get_or_insert_function(builder.module, kind, processor.pairs)

    def load(self, address: Any, kind: Any, offset: int = 0) -> Any:
        address = self.builder.add(address, ir.Constant(I64, offset))
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=2)

    def row(self, address: Any) -> list[Any]:
        """Numbers of a row, which are widened beforehand where there is need."""
        count = 2 if self.widens else 1
        return [self.load(address, self.loaded, i * self.vector_bytes) for i in range(count)]

    def weight(self, address: Any) -> list[Any]:
        if not self.widens:
            return [self.load(address, self.loaded)]
        pairs = self.load(address, self.bits)
        shift, upper = (ir.Constant(self.bits, [value] * self.lanes) for value in (16, 0xFFFF0000))
        halves = self.builder.shl(pairs, shift), self.builder.and_(pairs, upper)
        return [self.builder.bitcast(half, self.floats) for half in halves]

    def add(self, row: list[Any], weight: list[Any], total: Any) -> Any:
        for x, w in zip(row, weight, strict=True):
            if self.pairs is not None:
                total = self.builder.call(self.pairs, [total, x, w])
            else:
                term = self.builder.fmul(x, w, flags=["contract"])
                total = self.builder.fadd(total, term, flags=["contract"])
        return total

    def fold(self, a: Any, b: Any, span: int) -> Any:
        """Sums of lanes that are `span` apart: those of a and of b in turn."""
        low = [i if not i & span else self.lanes + i - span for i in range(self.lanes)]
        high = [i + span if not i & span else self.lanes + i for i in range(self.lanes)]
        masks = (ir.Constant(self.bits, mask) for mask in (low, high))
        return self.builder.fadd(*(self.builder.shuffle_vector(a, b, mask) for mask in masks))

    def prefetch(self, address: Any) -> None:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        hints = [ir.Constant(I32, hint) for hint in (0, 3, 1)]  # to be read, soon, as data
        self.builder.call(function, [self.builder.inttoptr(address, byte), *hints])

    def tile(self, rows: int, columns: int, args: Any) -> None:
        """out[r, c] = x[r] . w[c] for a few rows and columns; see `Kernel.tile`."""
        builder = self.builder
        x, x_row, w, w_row, vectors, out, out_row, more, ahead = args
        cells = [cgutils.alloca_once(builder, self.floats) for _ in range(rows * columns)]
        for cell in cells:
            builder.store(ir.Constant(self.floats, [0.0] * self.lanes), cell)
        x_starts, w_starts = self.starts(x, x_row, rows), self.starts(w, w_row, columns)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            here = builder.mul(loop.index, ir.Constant(I64, self.vector_bytes))
            there = builder.mul(here, ir.Constant(I64, 2)) if self.widens else here
            numbers = [self.row(builder.add(start, there)) for start in x_starts]
            for c, start in enumerate(w_starts):
                place = builder.add(start, here)
                self.prefetch(builder.add(place, ahead))
                weight = self.weight(place)
                for row, cell in zip(numbers, cells[c::columns], strict=True):
                    builder.store(self.add(row, weight, builder.load(cell)), cell)
        sums, span = [builder.load(cell) for cell in cells], 1
        while span < self.lanes:  # lane n ends as the sum of vector n
            sums = [self.fold(a, b, span) for a, b in zip(sums[::2], sums[1::2], strict=True)]
            span *= 2
        part = min(columns, self.lanes)
        for i, start in enumerate(self.starts(out, out_row, rows)):
            for c in range(0, columns, part):
                vector, lane = divmod(i * columns + c, self.lanes)
                address = builder.add(start, ir.Constant(I64, 4 * c))
                self.put(sums[vector], lane, part, address, more)

    def put(self, sums: Any, lane: int, count: int, address: Any, more: Any) -> None:
        """Some lanes of a vector, from `lane` on, to memory, or added to it if `more`."""
        builder, kind = self.builder, ir.VectorType(FLOAT, count)
        lanes = ir.Constant(ir.VectorType(I32, count), list(range(lane, lane + count)))
        place = builder.inttoptr(address, kind.as_pointer())
        before = builder.select(
            more, builder.load(place, align=4), ir.Constant(kind, [0.0] * count)
        )
        total = builder.fadd(before, builder.shuffle_vector(sums, sums, lanes))
        builder.store(total, place, align=4)

    def starts(self, base: Any, stride: Any, count: int) -> list[Any]:
        return [
            self.builder.add(base, self.builder.mul(stride, ir.Constant(I64, i)))
            for i in range(count)
        ]

    def widen(self, source: Any, target: Any, vectors: Any) -> None:
        """Pairs of numbers as float32: the first of each vector's pairs, then the second."""
        with cgutils.for_range(self.builder, vectors, intp=I64) as loop:
            here = self.builder.mul(loop.index, ir.Constant(I64, self.vector_bytes))
            place = self.builder.add(target, self.builder.add(here, here))
            for i, half in enumerate(self.weight(self.builder.add(source, here))):
                address = self.builder.add(place, ir.Constant(I64, i * self.vector_bytes))
                self.builder.store(
                    half, self.builder.inttoptr(address, self.floats.as_pointer()), align=4
                )


def _tile(processor: Processor, short: bool, rows: int) -> Any:
    @intrinsic
    def tile(  # noqa: PLR0913  (a kernel takes flat pointers and sizes)
        typing: Any,
        x: Any,
        x_row: Any,
        w: Any,
        w_row: Any,
        vectors: Any,
        out: Any,
        out_row: Any,
        more: Any,
        ahead: Any,
    ) -> Any:
        """out[r, c] = x[r] . w[c] in float32, for rows of so many vectors; strides and `ahead` in
        bytes.

        more: add the products to what is there. What lies `ahead` of the weights is asked for
        meanwhile.
        """

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
            Emitter(builder, processor, short).tile(rows, processor.cells // rows, args)

        return types.void(*[types.int64] * 7, types.boolean, types.int64), emit

    return tile


def _widen(processor: Processor, short: bool) -> Any:
    @intrinsic
    def widen(typing: Any, source: Any, target: Any, vectors: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
            if short and not processor.pairs:  # never called with others
                Emitter(builder, processor, short).widen(*args)

        return types.void(types.int64, types.int64, types.int64), emit

    return widen


def _some_rows(processor: Processor, short: bool, rows: int) -> Any:
    """A group of columns for some rows, so many at a time."""
    tile, step = _tile(processor, short, rows), processor.cells // rows
    wider = 1 + (short and not processor.pairs)
    vector = 4 * processor.lanes

    @njit(**FLAGS)
    def some_rows(p, x, row, end, column, begin):  # type: ignore[no-untyped-def]
        width = p[WIDTH]
        vectors = min(SLICE, width - begin) // vector
        while end - row >= rows:
            for c in range(column, column + GROUP, step):
                tile(
                    x + (row * width + begin) * wider,
                    width * wider,
                    p[W] + c * width + begin,
                    width,
                    vectors,
                    p[OUT] + 4 * (row * p[COLUMNS] + c),
                    4 * p[COLUMNS],
                    begin > 0,
                    GROUP * width,
                )
            row += rows
        return row

    return some_rows


@cache
def kernel(processor: Processor, short: bool) -> Callable[[Any], None]:
    """One thread's part, as a function that numba compiles."""
    by_8, by_4, by_2, by_1 = (_some_rows(processor, short, rows) for rows in (8, 4, 2, 1))
    widen, widens = _widen(processor, short), short and not processor.pairs
    wide_enough = processor.cells >= 16
    vector = 4 * processor.lanes

    @njit(**FLAGS)
    def columns_of(p, x, column, block, end):  # type: ignore[no-untyped-def]
        for begin in range(0, p[WIDTH], SLICE):
            row = block
            if wide_enough:
                row = by_8(p, x, row, end, column, begin)
            row = by_4(p, x, row, end, column, begin)
            row = by_2(p, x, row, end, column, begin)
            by_1(p, x, row, end, column, begin)

    def run(like):  # type: ignore[no-untyped-def]
        address = address_of(like)
        p = carray(integers(address), (COUNT,))
        x = p[X]
        thread = fetch_add(address + 8 * THREADS, 1)
        if widens:
            x = p[SCRATCH] + thread * p[ROWS] * p[WIDTH] * 2
            widen(p[X], x, p[ROWS] * p[WIDTH] // vector)
        first = fetch_add(address + 8 * NEXT, PANEL)
        while first < p[COLUMNS]:
            last = min(first + PANEL, p[COLUMNS])
            for block in range(0, p[ROWS], BLOCK):
                end = min(block + BLOCK, p[ROWS])
                for column in range(first, last, GROUP):
                    columns_of(p, x, column, block, end)
            first = fetch_add(address + 8 * NEXT, PANEL)

    return run


_compiled: list[Any] = []


def compiled(processor: Processor, dtype: torch.dtype) -> Any:
    """numba's C function for numbers of a type."""
    function = kernel(processor, dtype == torch.bfloat16)
    return numba.cfunc(types.void(types.CPointer(types.int64)), **FLAGS)(function)


def candidate(processor: str, dtype: torch.dtype) -> Candidate:
    """The candidate for a type of numbers, compiled now."""
    start = time.perf_counter()
    function = compiled(PROCESSORS[processor], dtype)
    _compiled.append(function)
    return Candidate("numba, portable", function.address, time.perf_counter() - start)
