"""What lies around attention in a decoder of Llama's kind, compiled: a list of shared operations.

Each operation is cut into units, and threads take units from its counter; after an operation whose
results the next one reads they wait for each other. Numbers are rounded where transformers' modules
round them, and sums of products are float32. A row's result does not depend on the number of
threads, nor in float32 on the rows beside it; bfloat16 is added up in another order where rows are
many.

Imported at first use only, for numba takes a second to import.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from ttc.attention.cpu_kernel import FLAGS
from ttc.attention.cpu_vectors import (
    LANES,
    address_of,
    as_float,
    at,
    fetch_add,
    floats,
    integers,
    transpose,
)
from ttc.model.cpu_tiles import (
    VECTOR_BYTES,
    call,
    call_of_kind,
    call_with,
    cycles,
    dots_1x1,
    dots_1x16,
    dots_2x8,
    dots_4x4,
    dots_8x2,
    gate_16,
    is_short,
    keep_16,
    kept,
    multiply_8,
    number,
)

BLOCK = 32
"""Rows whose results are kept in float32 at a time."""
SLICE = 2048
"""Bytes of the rows of weights that are multiplied at a time, so that both stay in a cache."""
CHUNK = 128
"""The most rows of a unit."""
MANY_ROWS = 96
"""From so many rows of a unit on it pays to pack weights, measured with SmolLM2-135M."""
PACKED = 1536
"""Bytes of the rows of weights that are packed at a time."""


def scratch_bytes(columns: int) -> int:
    """The memory that a thread works in whose units have at most so many columns."""
    return 2 * LANES * PACKED + 4 * CHUNK * 2 * columns


# what the head of a list says; addresses are in bytes
(THREAD, BARRIER, OPERATIONS, FIRST, END, SCRATCH, SCRATCH_STRIDE, ITEMSIZE, STARTED, HEAD) = range(
    10
)
# what each operation says, beside its kind: addresses, strides and widths in bytes, columns as a
# number
(
    KIND, NEXT, ENDED, NO_WAIT, ROWS, INPUT, INPUT_ROW, OUTPUT, OUTPUT_ROW, WIDTH, WEIGHT, BIAS, WEIGHT_2, BIAS_2,
    COLUMNS, PANEL, RESIDUAL, NORM, EPSILON, COS, SIN, INDEX, PRODUCTS, STORED, STORED_ROW, STORED_2, STORED_ROW_2,
    FIELDS,
) = range(28)  # fmt: skip

KINDS = (NORMALISE, PROJECT, PROJECT_HEADS, GATE, NARROW, ATTEND) = range(6)
LINEAR = (PROJECT, PROJECT_HEADS, GATE)


@njit(error_model="numpy", fastmath={"contract"})  # sums in one order, whatever the tile
def products(like, x, x_row, w, w_row, rows, columns, width, out, out_row, ahead):  # type: ignore[no-untyped-def]
    """out[r, c] = x[r] . w[c] in float32, for a few rows."""
    whole = columns // LANES * LANES
    for begin in range(0, width, SLICE):
        vectors = min(SLICE, width - begin) // VECTOR_BYTES
        more = begin > 0
        weights = w + begin
        row = 0
        while row < rows:
            left = rows - row
            source = x + row * x_row + begin
            target = out + row * out_row
            if left >= 8:
                step = 8
                for c in range(0, whole, 2):
                    dots_8x2(like, source, x_row, weights + c * w_row, w_row, vectors, target + 4 * c, out_row,
                             more, ahead)  # fmt: skip
            elif left >= 4:
                step = 4
                for c in range(0, whole, 4):
                    dots_4x4(like, source, x_row, weights + c * w_row, w_row, vectors, target + 4 * c, out_row,
                             more, ahead)  # fmt: skip
            elif left >= 2:
                step = 2
                for c in range(0, whole, 8):
                    dots_2x8(like, source, x_row, weights + c * w_row, w_row, vectors, target + 4 * c, out_row,
                             more, ahead)  # fmt: skip
            else:
                step = 1
                for c in range(0, whole, 16):
                    dots_1x16(like, source, x_row, weights + c * w_row, w_row, vectors, target + 4 * c, out_row,
                              more, ahead)  # fmt: skip
            for i in range(step):
                for c in range(whole, columns):
                    dots_1x1(like, source + i * x_row, x_row, weights + c * w_row, w_row, vectors,
                             target + i * out_row + 4 * c, out_row, more, ahead)  # fmt: skip
            row += step


@njit(**FLAGS)
def packed_products(  # type: ignore[no-untyped-def]
    like, x, x_row, w, w_2, w_row, rows, width, out, out_row, scratch, soon, soon_2
):
    """The same in bfloat16 for many rows, by 16 columns from w on and 16 from w_2 on, which are
    turned into vectors of 16 columns first. Eight rows at a time: up to seven more are read and
    written."""
    tiles = (rows + 7) // 8
    lines = (LANES + tiles - 1) // tiles
    second = scratch + LANES * PACKED
    done = 0
    for begin in range(0, width, PACKED):
        vectors = min(PACKED, width - begin) // VECTOR_BYTES
        for v in range(vectors):
            source = begin + v * VECTOR_BYTES
            place = v * VECTOR_BYTES * LANES
            transpose(floats(0), w + source, w_row // 4, LANES - 1, scratch + place, LANES)
            transpose(floats(0), w_2 + source, w_row // 4, LANES - 1, second + place, LANES)
        for row in range(0, rows, 8):
            multiply_8(like, x + row * x_row + begin, x_row, scratch, second, vectors, out + row * out_row, out_row,
                       begin > 0, soon + done, soon_2 + done, lines)  # fmt: skip
            done += vectors * lines * VECTOR_BYTES


@njit(**FLAGS)
def add_bias(like, sums, bias, columns):  # type: ignore[no-untyped-def]
    """Add a linear layer's bias to the sums of one row."""
    total = carray(floats(sums), (columns,))
    more = carray(at(like, bias), (columns,))
    for c in range(columns):
        total[c] += number(like, more[c])


@njit(**FLAGS)
def normalise(like, source, target, weight, width, eps, itemsize):  # type: ignore[no-untyped-def]
    """One row's RMS norm (Zhang and Sennrich, 2019)."""
    count = width // itemsize
    x = carray(at(like, source), (count,))
    y = carray(at(like, target), (count,))
    scale = carray(at(like, weight), (count,))
    total = np.float32(0.0)
    for i in range(count):
        total += number(like, x[i]) * number(like, x[i])
    factor = np.float32(1.0) / np.sqrt(total / np.float32(count) + eps)
    for i in range(count):
        y[i] = kept(
            like, number(like, scale[i]) * number(like, kept(like, number(like, x[i]) * factor))
        )


@njit(**FLAGS)
def finish_head(like, op, row, head, sums, dim, itemsize):  # type: ignore[no-untyped-def]
    """Normalise and rotate a head of one row (RoFormer), where the operation says so, and keep
    it."""
    x = carray(floats(sums), (dim,))
    out = carray(at(like, op[OUTPUT] + row * op[OUTPUT_ROW] + head * dim * itemsize), (dim,))
    for d in range(dim):
        x[d] = number(like, kept(like, x[d]))
    if op[NORM] != 0:
        scale = carray(at(like, op[NORM]), (dim,))
        total = np.float32(0.0)
        for d in range(dim):
            total += x[d] * x[d]
        factor = np.float32(1.0) / np.sqrt(
            total / np.float32(dim) + as_float(np.int32(op[EPSILON]))
        )
        for d in range(dim):
            x[d] = number(
                like, kept(like, number(like, scale[d]) * number(like, kept(like, x[d] * factor)))
            )
    if op[COS] != 0:
        cos = carray(at(like, op[COS] + row * dim * itemsize), (dim,))
        sin = carray(at(like, op[SIN] + row * dim * itemsize), (dim,))
        half = dim // 2
        for d in range(half):
            a, b = x[d], x[d + half]
            turned = number(like, kept(like, a * number(like, cos[d])))
            out[d] = kept(like, turned - number(like, kept(like, b * number(like, sin[d]))))
            turned = number(like, kept(like, b * number(like, cos[d + half])))
            out[d + half] = kept(
                like, turned + number(like, kept(like, a * number(like, sin[d + half])))
            )
    else:
        for d in range(dim):
            out[d] = kept(like, x[d])


@njit(**FLAGS)
def finish_columns(like, op, row, first, sums, columns, itemsize):  # type: ignore[no-untyped-def]
    """Keep columns of one row, added to what is there where the operation says so."""
    place = op[OUTPUT] + row * op[OUTPUT_ROW] + first * itemsize
    add = op[RESIDUAL] != 0
    whole = columns // LANES * LANES
    for c in range(0, whole, LANES):
        keep_16(like, sums + 4 * c, place + c * itemsize, add)
    x = carray(floats(sums), (columns,))
    out = carray(at(like, place), (columns,))
    for c in range(whole, columns):
        total = number(like, kept(like, x[c]))
        out[c] = kept(like, number(like, out[c]) + total if add else total)


@njit(**FLAGS)
def finish_gated(like, op, row, first, gates, ups, columns, itemsize):  # type: ignore[no-untyped-def]
    """Keep SiLU(gate) x up, columns of one row."""
    place = op[OUTPUT] + row * op[OUTPUT_ROW] + first * itemsize
    for c in range(0, columns, LANES):
        gate_16(like, gates + 4 * c, ups + 4 * c, place + c * itemsize)


@njit(**FLAGS)
def stored_products(  # type: ignore[no-untyped-def]
    function, stored, scratch, x, x_row, w, w_row, rows, columns, width, out, out_row, ahead
):
    """out[r, c] = x[r] . w[c] in float32, by `products` of stored_products.cpp."""
    part = carray(integers(scratch), (10,))
    part[0], part[1], part[2], part[3], part[4] = x, x_row, w, w_row, rows
    part[5], part[6], part[7], part[8], part[9] = columns, width, out, out_row, ahead
    call_of_kind(function, stored, scratch)


@njit(**FLAGS)
def project(like, op, unit, following, scratch, itemsize):  # type: ignore[no-untyped-def]
    """Some columns of a linear layer, for up to `CHUNK` rows."""
    rows = op[ROWS]
    panel = op[PANEL]
    kind = op[KIND]
    width = op[WIDTH]
    chunks = (rows + CHUNK - 1) // CHUNK
    first = unit // chunks * panel
    columns = min(panel, op[COLUMNS] - first)
    stored = op[PRODUCTS] != 0  # weights as a .gguf file has them, for which there is a C function
    w_row = op[STORED_ROW] if stored else width
    weight = op[WEIGHT] + first * w_row
    w_2_row = op[STORED_ROW_2] if stored else width
    weight_2 = op[WEIGHT_2] + first * w_2_row
    bias = op[BIAS] + first * itemsize if op[BIAS] != 0 else 0
    bias_2 = op[BIAS_2] + first * itemsize if op[BIAS_2] != 0 else 0
    skipped = following // chunks * panel - first  # columns until the unit that follows
    ahead = skipped * width
    pair = LANES if kind == GATE else 2 * LANES  # columns of the weight, or of each of the two
    start = unit % chunks * CHUNK
    end = min(start + CHUNK, rows)
    many = not stored and is_short(like) and end - start >= MANY_ROWS and columns % pair == 0
    block = CHUNK if many or stored else BLOCK
    sums_row = 4 * (2 * columns if kind == GATE else columns)
    results = scratch + 2 * LANES * PACKED
    for row in range(start, end, block):
        count = min(block, end - row)
        x = op[INPUT] + row * op[INPUT_ROW]
        if stored:
            numbers = width // itemsize
            stored_products(op[PRODUCTS], op[STORED], scratch, x, op[INPUT_ROW], weight, w_row, count, columns,
                            numbers, results, sums_row, skipped * w_row)  # fmt: skip
            if kind == GATE:
                stored_products(op[PRODUCTS], op[STORED_2], scratch, x, op[INPUT_ROW], weight_2, w_2_row, count,
                                columns, numbers, results + 4 * columns, sums_row, skipped * w_2_row)  # fmt: skip
        elif many:
            for c in range(0, columns, pair):
                w = weight + c * width
                w_2 = weight_2 + c * width if kind == GATE else w + LANES * width
                soon = pair * width if c + pair < columns else ahead - c * width
                target = results + 4 * 2 * LANES * (c // pair)
                packed_products(like, x, op[INPUT_ROW], w, w_2, width, count, width, target, sums_row, scratch,
                                w + soon, w_2 + soon)  # fmt: skip
        else:
            # few at a time, so that they stay in a cache for all rows
            for c in range(0, columns, LANES):
                some = min(LANES, columns - c)
                w = weight + c * width
                target = results + 4 * c
                soon = LANES * width if c + LANES < columns else ahead - c * width
                products(
                    like, x, op[INPUT_ROW], w, width, count, some, width, target, sums_row, soon
                )
                if kind == GATE:
                    w_2 = weight_2 + c * width
                    ups = target + 4 * columns
                    products(
                        like, x, op[INPUT_ROW], w_2, width, count, some, width, ups, sums_row, soon
                    )
        for i in range(count):
            sums = results + i * sums_row
            if bias != 0:
                add_bias(like, sums, bias, columns)
            if kind == PROJECT_HEADS:
                finish_head(like, op, row + i, first // panel, sums, columns, itemsize)
            elif kind == GATE:
                if bias_2 != 0:
                    add_bias(like, sums + 4 * columns, bias_2, columns)
                finish_gated(like, op, row + i, first, sums, sums + 4 * columns, columns, itemsize)
            else:
                finish_columns(like, op, row + i, first, sums, columns, itemsize)


@njit(**FLAGS)
def narrow(like, op, row, itemsize):  # type: ignore[no-untyped-def]
    """One row of float32 numbers, as the model keeps numbers."""
    count = op[WIDTH] // itemsize
    x = carray(floats(op[INPUT] + row * op[INPUT_ROW]), (count,))
    y = carray(at(like, op[OUTPUT] + row * op[OUTPUT_ROW]), (count,))
    for i in range(count):
        y[i] = kept(like, x[i])


@njit(**FLAGS)
def units_of(op):  # type: ignore[no-untyped-def]
    """How many units an operation is cut into."""
    if op[KIND] == NORMALISE or op[KIND] == NARROW:
        return op[ROWS]
    return (op[COLUMNS] + op[PANEL] - 1) // op[PANEL] * ((op[ROWS] + CHUNK - 1) // CHUNK)


@njit(**FLAGS)
def operate(like, op, address, scratch, itemsize):  # type: ignore[no-untyped-def]
    """One thread's part of an operation."""
    if op[KIND] == ATTEND:  # the kernel at WEIGHT, with its parameters; it has a counter of its own
        call_with(op[WEIGHT], op[INPUT])
        return
    units = units_of(op)
    unit = fetch_add(address + 8 * NEXT, 1)
    while unit < units:
        following = fetch_add(address + 8 * NEXT, 1)
        if op[KIND] == NORMALISE:
            row = carray(integers(op[INDEX]), (unit + 1,))[unit] if op[INDEX] != 0 else unit
            source = op[INPUT] + row * op[INPUT_ROW]
            target = op[OUTPUT] + unit * op[OUTPUT_ROW]
            eps = as_float(np.int32(op[EPSILON]))
            normalise(like, source, target, op[WEIGHT], op[WIDTH], eps, itemsize)
        elif op[KIND] == NARROW:
            narrow(like, op, unit, itemsize)
        else:
            project(like, op, unit, min(following, units - 1), scratch, itemsize)
        unit = following


def run(like):  # type: ignore[no-untyped-def]
    """One thread's part of a list. like: points to the head; its type says how numbers are kept."""
    head = carray(integers(address_of(like)), (HEAD,))
    thread = fetch_add(address_of(like) + 8 * THREAD, 1)
    scratch = head[SCRATCH] + thread * head[SCRATCH_STRIDE]
    if thread == 0:
        head[STARTED] = cycles()
    for i in range(head[FIRST], head[END]):
        address = head[OPERATIONS] + 8 * FIELDS * i
        op = carray(integers(address), (FIELDS,))
        operate(like, op, address, scratch, head[ITEMSIZE])
        if head[BARRIER] != 0 and op[NO_WAIT] == 0:
            call(head[BARRIER])
        if thread == 0:
            op[ENDED] = cycles()
