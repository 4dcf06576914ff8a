"""What the CPU kernel is made of: vectors of 16 float32 numbers, pointers and atomic counters, as
LLVM instructions.

LLVM maps the vectors to what the processor has. Addresses are int64 numbers; strides count numbers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16

_FLOAT, _INT = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


PAIRS = ir.VectorType(_BFloat(), 2 * LANES)
"""16 pairs of bfloat16 numbers."""


def _const(value: int) -> Any:
    return ir.Constant(_INT, value)


def _address(builder: Any, base: Any, offset: Any, itemsize: int, pointee: Any) -> Any:
    """A pointer to `pointee`, `offset` elements behind the address `base`."""
    return builder.inttoptr(
        builder.add(base, builder.mul(offset, _const(itemsize))), pointee.as_pointer()
    )


def _load(builder: Any, element: Any, base: Any, offset: Any, lanes: int | None) -> Any:
    """One or more KV numbers, widened to float32. element: numba's float32, uint16 (bfloat16) or
    int16 (float16)."""

    def shaped(scalar: Any) -> Any:
        return scalar if lanes is None else ir.VectorType(scalar, lanes)

    if element == types.float32:
        return builder.load(_address(builder, base, offset, 4, shaped(_FLOAT)), align=4)
    half = builder.load(_address(builder, base, offset, 2, shaped(ir.IntType(16))), align=2)
    if element == types.int16:
        return builder.fpext(builder.bitcast(half, shaped(ir.HalfType())), shaped(_FLOAT))
    wide = builder.zext(half, shaped(ir.IntType(32)))
    shift = ir.Constant(shaped(ir.IntType(32)), 16 if lanes is None else [16] * lanes)
    return builder.bitcast(builder.shl(wide, shift), shaped(_FLOAT))


@intrinsic
def load(typing: Any, like: Any, base: Any, offset: Any) -> Any:
    """The KV number at `offset`, as float32."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load(builder, signature.args[0].dtype, args[1], args[2], None)

    return types.float32(like, types.int64, types.int64), emit


@intrinsic
def widen(typing: Any, like: Any, source: Any, target: Any) -> Any:
    """Write 16 KV numbers from `source` on to `target`, as float32."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _load(builder, signature.args[0].dtype, args[1], _const(0), LANES)
        builder.store(vector, _address(builder, args[2], _const(0), 4, _VECTOR), align=4)

    return types.void(like, types.int64, types.int64), emit


def _emit_transpose(builder: Any, element: Any, itemsize: int, args: Any) -> None:
    source, stride, last, target, target_stride = args
    rows = []
    for i in range(LANES):
        row = builder.select(builder.icmp_signed("<", _const(i), last), _const(i), last)
        start = builder.add(source, builder.mul(builder.mul(row, stride), _const(itemsize)))
        rows.append(_load(builder, element, start, _const(0), LANES))
    span = 1
    while span < LANES:  # swap ever larger blocks across the diagonal
        lower = [j if not j & span else LANES + j - span for j in range(LANES)]
        upper = [j + span if not j & span else LANES + j for j in range(LANES)]
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), LANES), mask) for mask in (lower, upper)]
        for i in range(LANES):
            if not i & span:
                pair = rows[i], rows[i + span]
                rows[i], rows[i + span] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        span *= 2
    for i, row in enumerate(rows):
        place = _address(builder, target, builder.mul(_const(i), target_stride), 4, _VECTOR)
        builder.store(row, place, align=4)


@intrinsic
def transpose(
    typing: Any, like: Any, source: Any, stride: Any, last: Any, target: Any, target_stride: Any
) -> Any:
    """Write 16 KV numbers of each of 16 rows, `stride` apart, as columns of float32. Rows after
    `last` repeat it."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
        element = signature.args[0].dtype
        _emit_transpose(builder, element, 4 if element == types.float32 else 2, args[1:])

    i64 = types.int64
    return types.void(like, i64, i64, i64, i64, i64), emit


@intrinsic
def transpose_pairs(
    typing: Any, source: Any, stride: Any, last: Any, target: Any, target_stride: Any
) -> Any:
    """The same with 16 pairs of 16-bit numbers, as they are."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
        _emit_transpose(builder, types.float32, 2, args)

    i64 = types.int64
    return types.void(i64, i64, i64, i64, i64), emit


def _multiplies_pairs(context: Any) -> bool:
    return "+avx512bf16" in context.codegen().magic_tuple()[2].split(",")


def _emit_tile(builder: Any, rows: int, vectors: int, pairs: bool, args: Any) -> None:
    """c = c x keep + a @ b for so many rows and vectors of columns, held in registers."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR, PAIRS, PAIRS])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    multiply = cgutils.get_or_insert_function(builder.module, kind, name) if pairs else None
    a, a_row, b, b_row, c, c_row, terms, keep = args
    zero, nothing = ir.Constant(_VECTOR, [0.0] * LANES), ir.Constant(_VECTOR, ir.Undefined)
    first_lane = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    places, cells = [], []
    for i in range(rows):
        for j in range(vectors):
            offset = builder.add(builder.mul(c_row, _const(i)), _const(j * LANES))
            places.append(_address(builder, c, offset, 4, _VECTOR))
            cells.append(cgutils.alloca_once(builder, _VECTOR))
            builder.store(builder.select(keep, builder.load(places[-1], align=4), zero), cells[-1])
    with cgutils.for_range(builder, terms, intp=_INT) as loop:
        columns = []
        for j in range(vectors):
            offset = builder.add(builder.mul(loop.index, b_row), _const(j * LANES))
            columns.append(builder.load(_address(builder, b, offset, 4, _VECTOR), align=4))
        for i in range(rows):
            offset = builder.add(builder.mul(a_row, _const(i)), loop.index)
            number = builder.load(_address(builder, a, offset, 4, _FLOAT), align=4)
            single = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
            spread = builder.shuffle_vector(single, nothing, first_lane)
            for cell, column in zip(cells[i * vectors :], columns, strict=False):
                if multiply is not None:
                    numbers = (builder.bitcast(x, PAIRS) for x in (spread, column))
                    total = builder.call(multiply, [builder.load(cell), *numbers])
                else:
                    term = builder.fmul(spread, column, flags=["contract"])
                    total = builder.fadd(builder.load(cell), term, flags=["contract"])
                builder.store(total, cell)
    for cell, place in zip(cells, places, strict=True):
        builder.store(builder.load(cell), place, align=4)


def _tile(pairs: bool) -> Any:
    @intrinsic
    def tile(
        typing: Any,
        rows: Any,
        vectors: Any,
        a: Any,
        a_row: Any,
        b: Any,
        b_row: Any,
        c: Any,
        c_row: Any,
        terms: Any,
        keep: Any,
    ) -> Any:
        """c = c x keep + a @ b for 1 to 4 rows and 1, 2 or 4 vectors of columns, last strides 1. c
        is float32; a and b are too, or pairs of bfloat16."""

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if pairs and not _multiplies_pairs(context):
                return  # never called
            end = builder.append_basic_block("tile.end")
            switch = builder.switch(builder.add(builder.mul(args[0], _const(8)), args[1]), end)
            for rows in (1, 2, 3, 4):
                for vectors in (1, 2, 4):
                    block = builder.append_basic_block("tile")
                    switch.add_case(_const(8 * rows + vectors), block)
                    builder.position_at_end(block)
                    _emit_tile(builder, rows, vectors, pairs, args[2:])
                    builder.branch(end)
            builder.position_at_end(end)

        i64 = types.int64
        return types.void(i64, i64, i64, i64, i64, i64, i64, i64, i64, types.boolean), emit

    return tile


tile, tile_pairs = _tile(False), _tile(True)


@intrinsic
def multiplies_pairs(typing: Any, like: Any) -> Any:
    """Whether KV is bfloat16 and the processor multiplies pairs of such numbers; the compiler
    knows."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        short = signature.args[0].dtype == types.uint16
        return ir.Constant(ir.IntType(1), int(short and _multiplies_pairs(context)))

    return types.boolean(like), emit


@intrinsic
def largest_of(typing: Any, least: Any, address: Any, vectors: Any) -> Any:
    """The largest of `least` and the float32 numbers of some vectors."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        least, address, vectors = args
        nothing = ir.Constant(_VECTOR, ir.Undefined)

        def larger(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        def shuffled(x: Any, lanes: Any) -> Any:
            return builder.shuffle_vector(
                x, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), lanes)
            )

        cell = cgutils.alloca_once(builder, _VECTOR)
        single = builder.insert_element(nothing, least, ir.Constant(ir.IntType(32), 0))
        builder.store(shuffled(single, [0] * LANES), cell)
        with cgutils.for_range(builder, vectors, intp=_INT) as loop:
            offset = builder.mul(loop.index, _const(LANES))
            numbers = builder.load(_address(builder, address, offset, 4, _VECTOR), align=4)
            builder.store(larger(numbers, builder.load(cell)), cell)
        found, span = builder.load(cell), LANES // 2
        while span:
            found = larger(found, shuffled(found, [i ^ span for i in range(LANES)]))
            span //= 2
        return builder.extract_element(found, ir.Constant(ir.IntType(32), 0))

    return types.float32(types.float32, types.int64, types.int64), emit


@intrinsic
def at(typing: Any, like: Any, address: Any) -> Any:
    """A pointer of the type of `like`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], context.get_value_type(signature.return_type))

    return like(like, types.int64), emit


@intrinsic
def floats(typing: Any, address: Any) -> Any:
    """A pointer to float32 numbers."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), emit


@intrinsic
def integers(typing: Any, address: Any) -> Any:
    """A pointer to int64 numbers."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), emit


@intrinsic
def as_float(typing: Any, bits: Any) -> Any:
    """The float32 number with these bits."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.int32), emit


@intrinsic
def address_of(typing: Any, pointer: Any) -> Any:
    """Where a pointer points."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], _INT)

    return types.int64(pointer), emit


@intrinsic
def fetch_add(typing: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 number at an address, atomically. Returns what it was."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw(
            "add", builder.inttoptr(args[0], _INT.as_pointer()), args[1], "seq_cst"
        )

    return types.int64(types.int64, types.int64), emit


@intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Ask for the cache line at an address ahead of its use."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        hints = [ir.Constant(i32, hint) for hint in (0, 3, 1)]  # to be read, soon, as data
        builder.call(function, [builder.inttoptr(args[0], byte), *hints])

    return types.void(types.int64), emit
