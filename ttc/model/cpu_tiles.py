"""What the compiled layers are made of, as LLVM instructions: products, and numbers as kept.

`like` says how the model's numbers are kept: a pointer to float32, or to uint16 for bfloat16.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ttc.attention.cpu_vectors import LANES, PAIRS

VECTOR_BYTES = 64
"""Bytes of one vector of the model's numbers: rows are whole vectors."""

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_FLOAT = ir.FloatType()
_BYTES = ir.IntType(8).as_pointer()
_SUMS = ir.VectorType(_FLOAT, LANES)
_BITS = ir.VectorType(_I32, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)

NEAREST = 3
"""Memory that is asked for goes to the nearest cache,"""
SECOND = 2
"""or to the second one."""


def _const(value: int) -> Any:
    return ir.Constant(_I64, value)


def _all_floats(value: float) -> Any:
    return ir.Constant(_SUMS, [value] * LANES)


def _all_bits(value: int) -> Any:
    return ir.Constant(_BITS, [value] * LANES)


def _is_short(signature: Any) -> bool:
    return bool(signature.args[0].dtype == types.uint16)


def _multiplier(builder: Any) -> Any:
    """The function that adds products of pairs of bfloat16 to sums."""
    kind = ir.FunctionType(_SUMS, [_SUMS, PAIRS, PAIRS])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    return cgutils.get_or_insert_function(builder.module, kind, name)


def _ask_for(builder: Any, address: Any, cache: int) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_BYTES, _I32, _I32, _I32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    hints = [ir.Constant(_I32, hint) for hint in (0, cache, 1)]  # to be read, as data
    builder.call(prefetch, [builder.inttoptr(address, _BYTES), *hints])


def _fold(builder: Any, a: Any, b: Any, span: int) -> Any:
    """Sums of lanes that are `span` apart: those of a and of b in turn."""
    low = [i if not i & span else LANES + i - span for i in range(LANES)]
    high = [i + span if not i & span else LANES + i for i in range(LANES)]
    parts = [builder.shuffle_vector(a, b, ir.Constant(_BITS, mask)) for mask in (low, high)]
    return builder.fadd(*parts)


def _emit_dots(builder: Any, short: bool, rows: int, columns: int, args: Any) -> None:
    x, x_row, w, w_row, vectors, out, out_row, more, ahead = args
    vector = PAIRS if short else _SUMS
    multiply = _multiplier(builder) if short else None

    def starts(base: Any, stride: Any, count: int) -> list[Any]:
        return [builder.add(base, builder.mul(stride, _const(i))) for i in range(count)]

    cells = [cgutils.alloca_once(builder, _SUMS) for _ in range(rows * columns)]
    for cell in cells:
        builder.store(_all_floats(0.0), cell)
    x_starts = starts(x, x_row, rows)
    w_starts = starts(w, w_row, columns)
    with cgutils.for_range(builder, vectors, intp=_I64) as loop:
        here = builder.mul(loop.index, _const(VECTOR_BYTES))
        weights = []
        for start in w_starts:
            place = builder.add(start, here)
            weights.append(builder.load(builder.inttoptr(place, vector.as_pointer()), align=2))
            _ask_for(builder, builder.add(place, ahead), NEAREST)
        for i, start in enumerate(x_starts):
            place = builder.add(start, here)
            numbers = builder.load(builder.inttoptr(place, vector.as_pointer()), align=2)
            for cell, weight in zip(cells[i * columns :], weights, strict=False):
                if multiply is not None:
                    total = builder.call(multiply, [builder.load(cell), numbers, weight])
                else:
                    term = builder.fmul(numbers, weight, flags=["contract"])
                    total = builder.fadd(builder.load(cell), term, flags=["contract"])
                builder.store(total, cell)
    sums = [builder.load(cell) for cell in cells]
    span = 1
    while span < LANES:  # lane n ends as the sum of cell n, added up in one and the same order
        pairs = zip(sums[::2], sums[1::2] or sums, strict=True)
        sums = [_fold(builder, a, b, span) for a, b in pairs]
        span *= 2
    for i, start in enumerate(starts(out, out_row, rows)):
        numbers = list(range(i * columns, (i + 1) * columns))
        lanes = ir.Constant(ir.VectorType(_I32, columns), numbers)
        part = builder.shuffle_vector(sums[0], sums[0], lanes)
        place = builder.inttoptr(start, part.type.as_pointer())
        zeros = ir.Constant(part.type, [0.0] * columns)
        before = builder.select(more, builder.load(place, align=4), zeros)
        builder.store(builder.fadd(before, part), place, align=4)


def _dots(rows: int, columns: int) -> Any:
    @intrinsic
    def dots(
        typing: Any,
        like: Any,
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
        """out[r, c] = x[r] . w[c] in float32, for rows of so many vectors; strides in bytes.

        more: add to what is there. What lies `ahead` bytes of the weights is asked for meanwhile.
        """

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
            _emit_dots(builder, _is_short(signature), rows, columns, args[1:])

        return types.void(like, *[types.int64] * 7, types.boolean, types.int64), emit

    return dots


dots_8x2 = _dots(8, 2)
dots_4x4 = _dots(4, 4)
dots_2x8 = _dots(2, 8)
dots_1x16 = _dots(1, 16)
dots_1x1 = _dots(1, 1)


@intrinsic
def multiply_8(
    typing: Any,
    like: Any,
    x: Any,
    x_row: Any,
    packed: Any,
    packed_2: Any,
    vectors: Any,
    out: Any,
    out_row: Any,
    more: Any,
    soon: Any,
    soon_2: Any,
    lines: Any,
) -> Any:
    """out[r, c] = x[r] . w[c] in float32, for 8 rows of bfloat16 and 2 x 16 columns of weights.

    Vector n of `packed` and of `packed_2` holds numbers 2n and 2n + 1 of 16 columns; a column is as
    long as so many `vectors`. Strides are in bytes. more: add to what is there. Memory from `soon`
    and `soon_2` on is asked for meanwhile, `lines` of each for each vector.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
        if _is_short(signature):  # never called with others
            _emit_multiply(builder, 8, args[1:])

    return types.void(like, *[types.int64] * 7, types.boolean, *[types.int64] * 3), emit


def _emit_multiply(builder: Any, rows: int, args: Any) -> None:
    x, x_row, packed, packed_2, vectors, out, out_row, more, soon, soon_2, lines = args
    multiply = _multiplier(builder)
    nothing = ir.Constant(_BITS, ir.Undefined)

    def pointer(address: Any, kind: Any, offset: int = 0) -> Any:
        return builder.inttoptr(builder.add(address, _const(offset)), kind.as_pointer())

    def row_of(base: Any, stride: Any, row: int) -> Any:
        return builder.add(base, builder.mul(stride, _const(row)))

    starts = [row_of(out, out_row, i) for i in range(rows)]
    places = [pointer(start, _SUMS, offset) for start in starts for offset in (0, VECTOR_BYTES)]
    cells = [cgutils.alloca_once(builder, _SUMS) for _ in places]
    for cell, place in zip(cells, places, strict=True):
        before = builder.load(place, align=4)
        builder.store(builder.select(more, before, _all_floats(0.0)), cell)
    with cgutils.for_range(builder, vectors, intp=_I64) as loop:
        with cgutils.for_range(builder, lines, intp=_I64) as line:
            number = builder.add(builder.mul(loop.index, lines), line.index)
            offset = builder.mul(number, _const(VECTOR_BYTES))
            for address in (soon, soon_2):
                _ask_for(builder, builder.add(address, offset), SECOND)
        here = builder.add(x, builder.mul(loop.index, _const(VECTOR_BYTES)))
        block = builder.mul(loop.index, _const(VECTOR_BYTES * LANES))
        weights = [builder.add(start, block) for start in (packed, packed_2)]
        for n in range(LANES):
            columns = [builder.load(pointer(w, PAIRS, n * VECTOR_BYTES), align=2) for w in weights]
            for i in range(rows):
                pair = builder.load(pointer(row_of(here, x_row, i), _I32, 4 * n), align=2)
                single = builder.insert_element(nothing, pair, ir.Constant(_I32, 0))
                spread = builder.shuffle_vector(single, nothing, _all_bits(0))
                numbers = builder.bitcast(spread, PAIRS)
                for cell, column in zip(cells[2 * i :], columns, strict=False):
                    total = builder.call(multiply, [builder.load(cell), numbers, column])
                    builder.store(total, cell)
    for cell, place in zip(cells, places, strict=True):
        builder.store(builder.load(cell), place, align=4)


@intrinsic
def is_short(typing: Any, like: Any) -> Any:
    """Whether numbers are kept as bfloat16; the compiler knows."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(1), int(_is_short(signature)))

    return types.boolean(like), emit


@intrinsic
def number(typing: Any, like: Any, kept: Any) -> Any:
    """A number of the model, as float32."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if signature.args[0].dtype == types.float32:
            return args[1]
        bits = builder.shl(builder.zext(args[1], _I32), ir.Constant(_I32, 16))
        return builder.bitcast(bits, _FLOAT)

    return types.float32(like, like.dtype), emit


@intrinsic
def kept(typing: Any, like: Any, x: Any) -> Any:
    """A float32 as the model keeps it, rounded to nearest, ties to even."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if signature.args[0].dtype == types.float32:
            return args[1]
        bits = builder.bitcast(args[1], _I32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
        bits = builder.add(bits, builder.add(odd, ir.Constant(_I32, 0x7FFF)))
        return builder.trunc(builder.lshr(bits, ir.Constant(_I32, 16)), ir.IntType(16))

    return like.dtype(like, types.float32), emit


def _rounded(builder: Any, short: bool, x: Any) -> Any:
    if not short:
        return x
    return builder.bitcast(builder.and_(_up(builder, x), _all_bits(0xFFFF0000)), _SUMS)


def _up(builder: Any, x: Any) -> Any:
    """The bits of numbers that round to bfloat16 when their lower half is cut off."""
    bits = builder.bitcast(x, _BITS)
    odd = builder.and_(builder.lshr(bits, _all_bits(16)), _all_bits(1))
    return builder.add(bits, builder.add(odd, _all_bits(0x7FFF)))


def _put(builder: Any, short: bool, x: Any, address: Any) -> None:
    if short:
        x = builder.trunc(builder.lshr(_up(builder, x), _all_bits(16)), _HALVES)
    builder.store(x, builder.inttoptr(address, x.type.as_pointer()), align=2)


def _get(builder: Any, short: bool, address: Any) -> Any:
    if not short:
        return builder.load(builder.inttoptr(address, _SUMS.as_pointer()), align=4)
    halves = builder.load(builder.inttoptr(address, _HALVES.as_pointer()), align=2)
    return builder.bitcast(builder.shl(builder.zext(halves, _BITS), _all_bits(16)), _SUMS)


def _exp(builder: Any, x: Any) -> Any:
    """e to the x for x <= 0, as `ttc.attention.cpu_kernel.exp`."""

    def line(a: Any, b: Any, c: float) -> Any:
        return builder.fadd(
            builder.fmul(a, b, flags=["contract"]), _all_floats(c), flags=["contract"]
        )

    def plus_product(x: Any, a: Any, b: float) -> Any:
        product = builder.fmul(a, _all_floats(b), flags=["contract"])
        return builder.fadd(x, product, flags=["contract"])

    least = _all_floats(-87.0)
    x = builder.select(builder.fcmp_ordered("<", x, least), least, x)
    kind = ir.FunctionType(_SUMS, [_SUMS])
    floor = cgutils.get_or_insert_function(builder.module, kind, "llvm.floor.v16f32")
    n = builder.call(floor, [line(x, _all_floats(1.44269504), 0.5)])
    r = plus_product(plus_product(x, n, -0.693359375), n, 2.12194440e-4)
    p = _all_floats(1.9875691500e-4)
    for term in (
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    ):
        p = line(p, r, term)
    square = builder.fmul(builder.fmul(p, r), r, flags=["contract"])
    p = builder.fadd(square, line(r, _all_floats(1.0), 1.0))
    power = builder.add(builder.fptosi(n, _BITS), _all_bits(127))
    return builder.fmul(p, builder.bitcast(builder.shl(power, _all_bits(23)), _SUMS))


@intrinsic
def keep_16(typing: Any, like: Any, sums: Any, out: Any, add: Any) -> Any:
    """Round 16 sums and put them at `out`, added to what is there if `add`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
        short = _is_short(signature)
        x = _rounded(builder, short, _get(builder, False, args[1]))
        with builder.if_else(args[3]) as (then, otherwise):
            with then:
                _put(builder, short, builder.fadd(_get(builder, short, args[2]), x), args[2])
            with otherwise:
                _put(builder, short, x, args[2])

    return types.void(like, types.int64, types.int64, types.boolean), emit


@intrinsic
def gate_16(typing: Any, like: Any, gates: Any, ups: Any, out: Any) -> Any:
    """Put SiLU(gate) x up at `out`, for 16 sums of each (Shazeer, 2020: SwiGLU)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
        short = _is_short(signature)
        gate, up = (_rounded(builder, short, _get(builder, False, x)) for x in args[1:3])
        zero = _all_floats(0.0)
        one = _all_floats(1.0)
        positive = builder.fcmp_ordered(">=", gate, zero)
        e = _exp(builder, builder.select(positive, builder.fsub(zero, gate), gate))
        share = builder.fdiv(builder.select(positive, one, e), builder.fadd(one, e))
        silu = _rounded(builder, short, builder.fmul(gate, share))
        _put(builder, short, builder.fmul(silu, up), args[3])

    return types.void(like, types.int64, types.int64, types.int64), emit


@intrinsic
def call(typing: Any, address: Any) -> Any:
    """Call a C function without arguments."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])

    return types.void(types.int64), emit


@intrinsic
def call_with(typing: Any, address: Any, argument: Any) -> Any:
    """Call a C function of one pointer."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [_BYTES])
        function = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(function, [builder.inttoptr(args[1], _BYTES)])

    return types.void(types.int64, types.int64), emit


@intrinsic
def call_of_kind(typing: Any, address: Any, kind: Any, argument: Any) -> Any:
    """Call a C function of a number and a pointer."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> None:
        function_kind = ir.FunctionType(ir.VoidType(), [_I64, _BYTES])
        function = builder.inttoptr(args[0], function_kind.as_pointer())
        builder.call(function, [args[1], builder.inttoptr(args[2], _BYTES)])

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def cycles(typing: Any) -> Any:
    """The processor's clock, in ticks of its own."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I64, [])
        name = "llvm.readcyclecounter"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])

    return types.int64(), emit
