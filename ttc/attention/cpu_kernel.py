"""The attention of a whole layer as one function, compiled by numba. It takes the arrays that
`plan_arrays` documents.

A unit of work is one task for one KV head: its queries are gathered once, its keys are read once,
in blocks of `BLOCK`, and online softmax runs over them (Milakov and Gimelshein, 2018). Threads take
units from a shared counter; where several tasks share a row, their results are merged by
log-sum-exp once all units are done.

Imported at first use only, for numba takes a second to import.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from ttc.attention.cpu_vectors import (
    LANES,
    address_of,
    as_float,
    at,
    fetch_add,
    floats,
    integers,
    largest_of,
    load,
    multiplies_pairs,
    prefetch,
    tile,
    tile_pairs,
    transpose,
    transpose_pairs,
    widen,
)

BLOCK = 64
"""Keys of one block."""
LINE = 64
"""Bytes of a cache line."""

# what the parameters at each index say; addresses are in bytes, strides in numbers of their type
(
    TICKET, NEXT_UNIT, DONE_UNITS, NEXT_ROW,
    SCRATCH, SCRATCH_STRIDE, TASKS, UNITS, PIECES, STARTS, POSITIONS, OWN_PLACES, OWN_STARTS, ROWS,
    PART_FIRST, PARTS, PART_OUT, PART_SUM,
    KV_HEADS, GROUPS, KEY_DIM, VALUE_DIM, MOST_QUERIES, ITEMSIZE,
    ADDRESSES, Q, Q_HEAD, Q_GROUP, Q_ROW, OUT, LSE,
    OWN_KEY, OWN_KEY_ROW, OWN_KEY_HEAD, OWN_KEY_TOKEN, OWN_VALUE, OWN_VALUE_ROW, OWN_VALUE_HEAD, OWN_VALUE_TOKEN,
    NEW_KEY, NEW_KEY_HEAD, NEW_KEY_ROW, NEW_VALUE, NEW_VALUE_HEAD, NEW_VALUE_ROW,
    WINDOW, CHUNK, SCALE, SOFTCAP, PARAMETERS,
) = range(50)  # fmt: skip

NOTHING = np.float32(-1e30)
"""The running maximum of a row that has seen no key."""
HIDDEN = np.float32(-3e38)
"""The score of a key that a row does not see."""

FLAGS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}


def padded(count: int) -> int:
    """`count`, rounded up to whole vectors."""
    return -(-count // LANES) * LANES


@njit(**FLAGS)
def product(a, a_row, b, b_row, c, c_row, terms, keep, rows, columns, pairs):  # type: ignore[no-untyped-def]
    """c = c x keep + a @ b at float32 addresses; `columns` is a multiple of 16. pairs: a and b hold
    `terms` pairs of bfloat16 instead."""
    for i in range(0, rows, 4):
        j = 0
        while j < columns:
            vectors = 4 if columns - j >= 64 else (2 if columns - j >= 32 else 1)
            a_here, b_here, c_here = a + 4 * i * a_row, b + 4 * j, c + 4 * (i * c_row + j)
            if pairs:
                tile_pairs(
                    min(4, rows - i),
                    vectors,
                    a_here,
                    a_row,
                    b_here,
                    b_row,
                    c_here,
                    c_row,
                    terms,
                    keep,
                )
            else:
                tile(
                    min(4, rows - i),
                    vectors,
                    a_here,
                    a_row,
                    b_here,
                    b_row,
                    c_here,
                    c_row,
                    terms,
                    keep,
                )
            j += LANES * vectors


@njit(**FLAGS)
def in_pairs(like, dim):  # type: ignore[no-untyped-def]
    """Whether queries and keys stay bfloat16 and are multiplied in pairs: their products are exact
    either way."""
    return multiplies_pairs(like) and dim % (2 * LANES) == 0


@njit(**FLAGS)
def copy(like, source, target, count):  # type: ignore[no-untyped-def]
    """Copy numbers of KV's type from one address to another."""
    old, new = carray(at(like, source), (count,)), carray(at(like, target), (count,))
    for i in range(count):
        new[i] = old[i]


@njit(**FLAGS)
def widen_row(like, source, target, count, itemsize):  # type: ignore[no-untyped-def]
    """Write `count` KV numbers as float32."""
    if count < LANES:
        numbers = carray(floats(target), (count,))
        for d in range(count):
            numbers[d] = load(like, source, d)
    else:
        for d in range(0, count, LANES):
            d = min(d, count - LANES)  # the last ones may come twice
            widen(like, source + d * itemsize, target + 4 * d)


@njit(**FLAGS)
def exp(x):  # type: ignore[no-untyped-def]
    """e to the x for x <= 0, to about 1e-7 of it (Cephes' expf); no less than 1e-38."""
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    n = np.float32(np.floor(x * np.float32(1.44269504) + np.float32(0.5)))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1.0)) * as_float(
        (np.int32(n) + np.int32(127)) << np.int32(23)
    )


@njit(**FLAGS)
def tanh(x):  # type: ignore[no-untyped-def]
    """To about 1e-7 of it (Cephes' tanhf)."""
    size, z = abs(x), x * x
    e = exp(np.float32(-2.0) * size)
    far = (np.float32(1.0) - e) / (np.float32(1.0) + e)
    p = np.float32(-5.70498872745e-3)
    p = p * z + np.float32(2.06390887954e-2)
    p = p * z - np.float32(5.37397155531e-2)
    p = p * z + np.float32(1.33314422036e-1)
    p = p * z - np.float32(3.33332819422e-1)
    near = size + size * z * p
    size = near if size < np.float32(0.625) else far
    return size if x >= 0 else -size


# ---------------------------------------------------------------- one unit: a task for one KV head


@njit(**FLAGS)
def first_seen(P, position):  # type: ignore[no-untyped-def]
    """The first position that a row at `position` sees; it may be negative."""
    first = position - P[WINDOW] + 1 if P[WINDOW] > 0 else 0
    if P[CHUNK] > 0:
        first = max(first, position - position % P[CHUNK])
    return first


@njit(**FLAGS)
def attend_run(  # type: ignore[no-untyped-def]
    P,
    like,
    scratch,
    queries,
    row,
    key,
    key_token,
    value,
    value_token,
    count,
    start,
    causal,
    low,
    high,
):
    """Let the queries of a unit attend `count` keys at positions from `start` on. low, high: the
    rows' positions."""
    groups, dim, value_dim = P[GROUPS], P[KEY_DIM], P[VALUE_DIM]
    itemsize, first_of_low, first_of_high = P[ITEMSIZE], first_seen(P, low), first_seen(P, high)
    scale, softcap = as_float(np.int32(P[SCALE])), as_float(np.int32(P[SOFTCAP]))
    pairs = in_pairs(like, dim)
    width = (value_dim + LANES - 1) // LANES * LANES
    q, s, o, kt, v, tops, sums = parts_of(P, scratch)
    positions = carray(integers(P[POSITIONS]), (P[ROWS],))
    top, total = carray(floats(tops), (queries,)), carray(floats(sums), (queries,))
    for first in range(0, count, BLOCK):
        n, begin = min(BLOCK, count - first), start + first
        if causal and begin > high:
            break
        if begin + n - 1 < first_of_low:
            continue
        left = count - first - BLOCK
        if left > 0:
            expect(key + (first + BLOCK) * key_token * itemsize, key_token, left, dim, itemsize)
            expect(
                value + (first + BLOCK) * value_token * itemsize,
                value_token,
                left,
                value_dim,
                itemsize,
            )
        columns = (n + LANES - 1) // LANES * LANES
        k_here, v_here = key + first * key_token * itemsize, value + first * value_token * itemsize
        for j in range(0, columns, LANES):
            source = k_here + j * key_token * itemsize
            if pairs:
                for d in range(0, dim // 2, LANES):
                    place = kt + 4 * (d * BLOCK + j)
                    transpose_pairs(source + 2 * d * itemsize, key_token, n - 1 - j, place, BLOCK)
            elif dim < LANES:
                for d in range(dim):
                    to = carray(floats(kt + 4 * (d * BLOCK + j)), (LANES,))
                    for i in range(LANES):
                        to[i] = load(like, source, min(i, n - 1 - j) * key_token + d)
            else:
                for d in range(0, dim, LANES):
                    d = min(d, dim - LANES)  # the last columns may come twice
                    transpose(
                        like,
                        source + d * itemsize,
                        key_token,
                        n - 1 - j,
                        kt + 4 * (d * BLOCK + j),
                        BLOCK,
                    )
        for j in range(n):
            widen_row(
                like, v_here + j * value_token * itemsize, v + 4 * j * width, value_dim, itemsize
            )
        product(
            q, dim, kt, BLOCK, s, BLOCK, dim // 2 if pairs else dim, False, queries, columns, pairs
        )
        masked = (causal and begin + n - 1 > low) or begin < first_of_high
        for i in range(queries):
            scores = carray(floats(s + 4 * i * BLOCK), (BLOCK,))
            for j in range(columns):
                scores[j] *= scale
            if softcap > 0:
                for j in range(columns):
                    scores[j] = softcap * tanh(scores[j] / softcap)
            if masked:
                position = positions[row + i // groups]
                latest = position if causal else begin + n
                earliest = first_seen(P, position)
                for j in range(columns):
                    visible = earliest <= begin + j <= latest
                    scores[j] = scores[j] if visible else HIDDEN
            for j in range(n, columns):
                scores[j] = HIDDEN
            largest = largest_of(top[i], s + 4 * i * BLOCK, columns // LANES)
            added = np.float32(0.0)
            for j in range(columns):
                weight = exp(scores[j] - largest)
                scores[j] = weight
                added += weight
            if largest != top[i]:
                shrink = exp(top[i] - largest)
                total[i] *= shrink
                out = carray(floats(o + 4 * i * width), (width,))
                for d in range(width):
                    out[d] *= shrink
                top[i] = largest
            total[i] += added
        product(s, BLOCK, v, width, o, width, n, True, queries, width, False)


@njit(**FLAGS)
def parts_of(P, scratch):  # type: ignore[no-untyped-def]
    """Addresses in a thread's scratch memory: queries, scores, results, keys, values, maxima,
    sums."""
    most, dim, width = P[MOST_QUERIES], P[KEY_DIM], (P[VALUE_DIM] + LANES - 1) // LANES * LANES
    s = scratch + 4 * most * ((dim + LANES - 1) // LANES * LANES)
    o = s + 4 * most * BLOCK
    kt = o + 4 * most * width
    v = kt + 4 * dim * BLOCK
    tops = v + 4 * BLOCK * width
    return scratch, s, o, kt, v, tops, tops + 4 * most


@njit(**FLAGS)
def attend_unit(P, like, unit, scratch):  # type: ignore[no-untyped-def]
    """Attend all that a task reads, for one KV head."""
    kv_heads, groups, dim, value_dim, itemsize = (
        P[KV_HEADS],
        P[GROUPS],
        P[KEY_DIM],
        P[VALUE_DIM],
        P[ITEMSIZE],
    )
    task, head = unit // kv_heads, unit % kv_heads
    tasks = carray(integers(P[TASKS] + 48 * task), (6,))
    row, end, first_piece, end_piece, slot, own_row = (
        tasks[0],
        tasks[1],
        tasks[2],
        tasks[3],
        tasks[4],
        tasks[5],
    )
    positions = carray(integers(P[POSITIONS]), (P[ROWS],))
    queries = (end - row) * groups
    width = (value_dim + LANES - 1) // LANES * LANES
    q, _, o, _, _, tops, sums = parts_of(P, scratch)
    top, total = carray(floats(tops), (queries,)), carray(floats(sums), (queries,))
    out = carray(floats(o), (queries * width,))
    for i in range(queries):
        source = (
            P[Q]
            + (head * P[Q_HEAD] + i % groups * P[Q_GROUP] + (row + i // groups) * P[Q_ROW])
            * itemsize
        )
        if in_pairs(like, dim):
            copy(like, source, q + 4 * i * dim, dim)
        else:
            widen_row(like, source, q + 4 * i * dim, dim, itemsize)
        top[i], total[i] = NOTHING, np.float32(0.0)
    out[:] = np.float32(0.0)
    low, high = positions[row], positions[row]
    for r in range(row, end):
        low, high = min(low, positions[r]), max(high, positions[r])
    for piece in range(first_piece, end_piece + 1):
        own = piece == end_piece
        if own:
            if own_row < 0:
                break
            key_token, value_token = P[OWN_KEY_TOKEN], P[OWN_VALUE_TOKEN]
            owner = carray(integers(P[OWN_PLACES]), (P[ROWS],))[own_row]
            start = carray(integers(P[OWN_STARTS]), (P[ROWS],))[own_row]
            filled = positions[own_row] - start
            key = P[OWN_KEY] + (owner * P[OWN_KEY_ROW] + head * P[OWN_KEY_HEAD]) * itemsize
            value = P[OWN_VALUE] + (owner * P[OWN_VALUE_ROW] + head * P[OWN_VALUE_HEAD]) * itemsize
            if P[NEW_KEY] != 0:
                new_key = P[NEW_KEY] + (head * P[NEW_KEY_HEAD] + row * P[NEW_KEY_ROW]) * itemsize
                new_value = (
                    P[NEW_VALUE] + (head * P[NEW_VALUE_HEAD] + row * P[NEW_VALUE_ROW]) * itemsize
                )
                copy(like, new_key, key + filled * key_token * itemsize, dim)
                copy(like, new_value, value + filled * value_token * itemsize, value_dim)
            count = filled + end - own_row
        else:
            pieces = carray(integers(P[PIECES] + 24 * piece), (3,))
            entry, skipped, count = pieces[0], pieces[1], pieces[2]
            place = carray(integers(P[ADDRESSES] + 48 * entry), (6,))
            if place[0] == 0:
                continue
            key_token, value_token = place[3], place[5]
            key = place[0] + (head * place[2] + skipped * key_token) * itemsize
            value = place[1] + (head * place[4] + skipped * value_token) * itemsize
            start = carray(integers(P[STARTS]), (entry + 1,))[entry] + skipped
        attend_run(
            P,
            like,
            scratch,
            queries,
            row,
            key,
            key_token,
            value,
            value_token,
            count,
            start,
            own,
            low,
            high,
        )
    heads = kv_heads * groups
    for i in range(queries):
        if slot < 0:
            place = (row + i // groups) * heads + head * groups + i % groups
            finish(P, place, value_dim, o + 4 * i * width, top[i], total[i])
        else:
            place = (slot + i // groups) * heads + head * groups + i % groups
            source = carray(floats(o + 4 * i * width), (value_dim,))
            target = carray(floats(P[PART_OUT] + 4 * place * value_dim), (value_dim,))
            for d in range(value_dim):
                target[d] = source[d]
            target = carray(floats(P[PART_SUM] + 8 * place), (2,))
            target[0], target[1] = top[i], total[i]


@njit(**FLAGS)
def expect(address, stride, tokens, width, itemsize):  # type: ignore[no-untyped-def]
    """Ask for the first `tokens` tokens' numbers ahead of their use, a block at most."""
    for token in range(min(tokens, BLOCK)):
        for offset in range(0, width * itemsize, LINE):
            prefetch(address + token * stride * itemsize + offset)


@njit(**FLAGS)
def expect_unit(P, unit):  # type: ignore[no-untyped-def]
    """Ask for the keys and values that a unit begins with."""
    kv_heads, itemsize = P[KV_HEADS], P[ITEMSIZE]
    task, head = unit // kv_heads, unit % kv_heads
    tasks = carray(integers(P[TASKS] + 48 * task), (6,))
    if tasks[2] < tasks[3]:
        pieces = carray(integers(P[PIECES] + 24 * tasks[2]), (3,))
        place = carray(integers(P[ADDRESSES] + 48 * pieces[0]), (6,))
        if place[0] != 0:
            key = place[0] + (head * place[2] + pieces[1] * place[3]) * itemsize
            value = place[1] + (head * place[4] + pieces[1] * place[5]) * itemsize
            expect(key, place[3], pieces[2], P[KEY_DIM], itemsize)
            expect(value, place[5], pieces[2], P[VALUE_DIM], itemsize)
    if tasks[5] >= 0:
        row = tasks[5]
        owner = carray(integers(P[OWN_PLACES]), (P[ROWS],))[row]
        start = carray(integers(P[OWN_STARTS]), (P[ROWS],))[row]
        count = carray(integers(P[POSITIONS]), (P[ROWS],))[row] - start + 1
        key = P[OWN_KEY] + (owner * P[OWN_KEY_ROW] + head * P[OWN_KEY_HEAD]) * itemsize
        value = P[OWN_VALUE] + (owner * P[OWN_VALUE_ROW] + head * P[OWN_VALUE_HEAD]) * itemsize
        expect(key, P[OWN_KEY_TOKEN], count, P[KEY_DIM], itemsize)
        expect(value, P[OWN_VALUE_TOKEN], count, P[VALUE_DIM], itemsize)


@njit(**FLAGS)
def finish(P, place, value_dim, source, top, total):  # type: ignore[no-untyped-def]
    """Write the result of one query: the sum of weighted values over that of the weights, and the
    log-sum-exp."""
    target, sums = (
        carray(floats(P[OUT] + 4 * place * value_dim), (value_dim,)),
        carray(floats(source), (value_dim,)),
    )
    lse = carray(floats(P[LSE] + 4 * place), (1,))
    if top <= NOTHING:
        target[:] = np.float32(0.0)
        lse[0] = -np.inf
    else:
        share = np.float32(1.0) / total
        for d in range(value_dim):
            target[d] = sums[d] * share
        lse[0] = top + np.log(total)


@njit(**FLAGS)
def merge_row(P, row, scratch):  # type: ignore[no-untyped-def]
    """Merge what several tasks found for one row, by log-sum-exp."""
    heads, value_dim = P[KV_HEADS] * P[GROUPS], P[VALUE_DIM]
    firsts = carray(integers(P[PART_FIRST]), (row + 2,))
    first, end = firsts[row], firsts[row + 1]
    if first == end:
        return
    parts = carray(integers(P[PARTS]), (end,))
    merged = carray(floats(scratch), (value_dim,))
    for head in range(heads):
        top, total = NOTHING, np.float32(0.0)
        for i in range(first, end):
            top = max(top, carray(floats(P[PART_SUM] + 8 * (parts[i] * heads + head)), (2,))[0])
        merged[:] = np.float32(0.0)
        for i in range(first, end):
            place = parts[i] * heads + head
            part = carray(floats(P[PART_SUM] + 8 * place), (2,))
            weight = exp(part[0] - top)
            total += weight * part[1]
            values = carray(floats(P[PART_OUT] + 4 * place * value_dim), (value_dim,))
            for d in range(value_dim):
                merged[d] += weight * values[d]
        finish(P, row * heads + head, value_dim, scratch, top, total)


def run(like):  # type: ignore[no-untyped-def]
    """One thread's part of a call. like: points to the parameters; its type says what KV consists
    of."""
    base = address_of(like)
    P = carray(integers(base), (PARAMETERS,))
    scratch = P[SCRATCH] + fetch_add(base + 8 * TICKET, 1) * P[SCRATCH_STRIDE]
    unit = fetch_add(base + 8 * NEXT_UNIT, 1)
    while unit < P[UNITS]:
        following = fetch_add(base + 8 * NEXT_UNIT, 1)
        if following < P[UNITS]:
            expect_unit(P, following)
        attend_unit(P, like, unit, scratch)
        fetch_add(base + 8 * DONE_UNITS, 1)
        unit = following
    if P[PARTS] != 0:
        while fetch_add(base + 8 * DONE_UNITS, 0) < P[UNITS]:
            pass  # others are at work on the last units
        row = fetch_add(base + 8 * NEXT_ROW, 1)
        while row < P[ROWS]:
            merge_row(P, row, scratch)
            row = fetch_add(base + 8 * NEXT_ROW, 1)
