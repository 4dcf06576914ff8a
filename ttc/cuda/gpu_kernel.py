"""The attention of a whole layer as Triton kernels. They take the arrays that `plan_arrays`
documents.

A program is one task for one KV head: the queries of its rows, all heads of the group, are one side
of a matrix product whose other side is a block of keys. So a key is read once for all rows of a
task, or once for each `TILE` of its queries where it has more. Online softmax runs over the blocks
(Milakov and Gimelshein, 2018); where several tasks share a row, `merge_rows` merges what they left
by log-sum-exp. Sums are float32; weights are rounded to the values' type before they meet, as usual
on GPUs.

Imported at first use only. With TRITON_INTERPRET=1 in the environment by then, the kernels run on
CPU tensors.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

NOTHING = tl.constexpr(-1e30)
"""The running maximum of a query that has seen no key."""
HIDDEN = tl.constexpr(-3e38)
"""The score of a key that a query does not see."""


@triton.jit
def numbers(packed, KIND: tl.constexpr):
    """Bytes as float32: int8, or with KIND "fp8" float8_e4m3fn. That is a float16 with fewer digits
    and another bias, so that every GPU reads it."""
    if KIND == "fp8":
        wide = packed.to(tl.int16)
        half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        result = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    else:
        result = packed.to(tl.float32)
    return result


@triton.jit
def attend_run(
    top, total, out, q, position, low, high,
    key, key_token, value, value_token, new_key, new_value, filled, count, start,
    window, chunk, scale, softcap, dim, value_dim,
    CAUSAL: tl.constexpr, NEW: tl.constexpr, CAPPED: tl.constexpr, WIDEN: tl.constexpr,
    PACKED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Let queries attend `count` keys, at positions from `start` on. top, total, out: their maxima,
    sums and sums of weighted values so far. low, high: the least and the largest of their
    positions. With NEW, the keys from `filled` on are `new_key`. PACKED: how keys and values are
    kept in bytes, each with its scale behind it (see `numbers`)."""
    d, v = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    earliest = tl.maximum(low - window + 1, low // chunk * chunk)
    first = tl.maximum(earliest - start, 0) // BLOCK * BLOCK
    oldest = tl.maximum(position - window + 1, position // chunk * chunk)
    end = tl.minimum(count, high - start + 1) if CAUSAL else count
    for block in range(first, end, BLOCK):
        column = block + tl.arange(0, BLOCK)
        here = column < end
        key_at, value_at = key + column * key_token, value + column * value_token
        if NEW:
            key_at = tl.where(column < filled, key_at, new_key)
            value_at = tl.where(column < filled, value_at, new_value)
        keys = tl.load(
            key_at[None, :] + d[:, None], mask=here[None, :] & (d < dim)[:, None], other=0.0
        )
        values = tl.load(
            value_at[:, None] + v[None, :], mask=here[:, None] & (v < value_dim)[None, :], other=0.0
        )
        if PACKED != "":
            scales = (key_at + dim).to(tl.pointer_type(tl.float32))
            key_scale = tl.load(scales, mask=here, other=0.0)
            scales = (value_at + value_dim).to(tl.pointer_type(tl.float32))
            value_scale = tl.load(scales, mask=here, other=0.0)
            keys, values = numbers(keys, PACKED).to(q.dtype), numbers(values, PACKED).to(q.dtype)
        if WIDEN:  # the interpreter has no products of bfloat16
            keys, values = keys.to(tl.float32), values.to(tl.float32)
        scores = tl.dot(q, keys, input_precision="ieee") * scale
        if PACKED != "":
            scores = scores * key_scale[None, :]
        if CAPPED:
            falling = tl.exp(-2.0 * tl.abs(scores) / softcap)
            size = softcap * (1.0 - falling) / (1.0 + falling)
            scores = tl.where(scores < 0, -size, size)
        place = (start + column)[None, :]
        visible = here[None, :] & (place >= oldest[:, None])
        if CAUSAL:
            visible = visible & (place <= position[:, None])
        scores = tl.where(visible, scores, HIDDEN)
        largest = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - largest[:, None])
        shrink = tl.exp(top - largest)
        total = total * shrink + tl.sum(weights, 1)
        if PACKED != "":
            weights = weights * value_scale[None, :]
        out = out * shrink[:, None] + tl.dot(
            weights.to(values.dtype), values, input_precision="ieee"
        )
        top = largest
    return top, total, out


@triton.jit
def attend_tasks(
    q_at, q_head, q_group, q_row, out_at, lse_at, part_out, part_sum,
    new_key, new_key_head, new_key_row, new_value, new_value_head, new_value_row,
    tasks, pieces, starts, addresses, positions, own_starts, owners, own_firsts, window, chunk,
    scale, softcap, dim, value_dim, GROUPS: tl.constexpr, TILE: tl.constexpr,
    OWNERS: tl.constexpr, CAPPED: tl.constexpr, WIDEN: tl.constexpr, PACKED: tl.constexpr,
    ALIGN: tl.constexpr, BYTES: tl.constexpr, OWN_ALIGN: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Some tasks of a layer: program (task, KV head, tile of queries). With OWNERS, own keys and
    values lie in storages, and the new ones are written there; else own ones are the new ones.
    PACKED: of entries, see `attend_run`. ALIGN, BYTES: what the strides of entries, and their
    addresses, are multiples of. OWN_ALIGN: strides of the rows' storages."""
    kv_type = q_at.dtype
    if PACKED != "":
        kv_type = tl.pointer_type(tl.int8)
    task, head = tasks + 6 * tl.program_id(0), tl.program_id(1)
    row, end, first_piece = tl.load(task), tl.load(task + 1), tl.load(task + 2)
    end_piece, slot, own_row = tl.load(task + 3), tl.load(task + 4), tl.load(task + 5)
    if tl.program_id(2) * TILE >= (end - row) * GROUPS:
        return  # other tasks have more queries
    query = tl.program_id(2) * TILE + tl.arange(0, TILE)
    d, v = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    mine = tl.minimum(row + query // GROUPS, end - 1)  # beyond the last row, it again
    group = query % GROUPS
    at = q_at + head * q_head + group * q_group + mine * q_row
    q = tl.load(at[:, None] + d[None, :], mask=(d < dim)[None, :], other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    position = tl.load(positions + mine)
    low, high = tl.min(position, 0), tl.max(position, 0)
    top = tl.full([TILE], NOTHING, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    out = tl.zeros([TILE, VALUE_WIDTH], tl.float32)
    for piece in range(first_piece, end_piece):
        entry, skipped = tl.load(pieces + 3 * piece), tl.load(pieces + 3 * piece + 1)
        place = addresses + 6 * entry
        key_address, value_address = tl.load(place), tl.load(place + 1)
        key_token = tl.multiple_of(tl.load(place + 3), ALIGN)
        value_token = tl.multiple_of(tl.load(place + 5), ALIGN)
        # an entry that is not on the device has address 0 and no keys here
        count = tl.where(key_address == 0, 0, tl.load(pieces + 3 * piece + 2))
        key = key_address.to(kv_type) + tl.multiple_of(
            head * tl.load(place + 2) + skipped * key_token, ALIGN
        )
        value = value_address.to(kv_type) + tl.multiple_of(
            head * tl.load(place + 4) + skipped * value_token, ALIGN
        )
        key, value = tl.multiple_of(key, BYTES), tl.multiple_of(value, BYTES)
        start = tl.load(starts + entry) + skipped
        top, total, out = attend_run(
            top, total, out, q, position, low, high, key, key_token, value, value_token, key, value,
            0, count, start, window, chunk, scale, softcap, dim, value_dim, False, False, CAPPED,
            WIDEN, PACKED, BLOCK, WIDTH, VALUE_WIDTH,
        )  # fmt: skip
    if own_row >= 0:
        start = tl.load(own_starts + own_row)
        filled = tl.load(positions + own_row) - start
        fresh_key = new_key + head * new_key_head + own_row * new_key_row
        fresh_value = new_value + head * new_value_head + own_row * new_value_row
        if OWNERS:
            place, first = owners + 6 * own_row, tl.load(own_firsts + own_row)
            own_key_token = tl.multiple_of(tl.load(place + 3), OWN_ALIGN)
            own_value_token = tl.multiple_of(tl.load(place + 5), OWN_ALIGN)
            own_key = tl.load(place).to(q_at.dtype) + tl.multiple_of(
                head * tl.load(place + 2) + first * own_key_token, OWN_ALIGN
            )
            own_value = tl.load(place + 1).to(q_at.dtype) + tl.multiple_of(
                head * tl.load(place + 4) + first * own_value_token, OWN_ALIGN
            )
            if OWN_ALIGN > 1:
                own_key, own_value = tl.multiple_of(own_key, 16), tl.multiple_of(own_value, 16)
        else:
            own_key, own_key_token = fresh_key, new_key_row
            own_value, own_value_token = fresh_value, new_value_row
        top, total, out = attend_run(
            top, total, out, q, position, low, high, own_key, own_key_token, own_value,
            own_value_token, fresh_key, fresh_value, filled, filled + end - own_row, start, window,
            chunk, scale, softcap, dim, value_dim, True, OWNERS, CAPPED, WIDEN, "", BLOCK, WIDTH,
            VALUE_WIDTH,
        )  # fmt: skip
        if OWNERS:
            tl.store(
                own_key + filled * own_key_token + d,
                tl.load(fresh_key + d, mask=d < dim),
                mask=d < dim,
            )
            tl.store(
                own_value + filled * own_value_token + v,
                tl.load(fresh_value + v, mask=v < value_dim),
                mask=v < value_dim,
            )
    heads = tl.num_programs(1) * GROUPS
    real = query < (end - row) * GROUPS
    if slot < 0:
        to = mine * heads + head * GROUPS + group
        share = tl.where(top > NOTHING, 1.0 / total, 0.0)
        tl.store(
            lse_at + to, tl.where(top > NOTHING, top + tl.log(total), float("-inf")), mask=real
        )
        tl.store(
            out_at + to[:, None] * value_dim + v[None, :], out * share[:, None],
            mask=real[:, None] & (v < value_dim)[None, :],
        )  # fmt: skip
    else:
        to = (slot + mine - row) * heads + head * GROUPS + group
        tl.store(part_sum + 2 * to, top, mask=real)
        tl.store(part_sum + 2 * to + 1, total, mask=real)
        tl.store(
            part_out + to[:, None] * value_dim + v[None, :],
            out,
            mask=real[:, None] & (v < value_dim)[None, :],
        )


@triton.jit
def merge_rows(
    part_out, part_sum, part_first, parts, out_at, lse_at, value_dim, PARTS: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Merge what several tasks found for one row and head, `PARTS` of them at a time, by
    log-sum-exp: program (row, head)."""
    row, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first, end = tl.load(part_first + row), tl.load(part_first + row + 1)
    v = tl.arange(0, VALUE_WIDTH)
    if first < end:
        top = tl.full([], NOTHING, tl.float32)
        total = tl.zeros([], tl.float32)
        out = tl.zeros([VALUE_WIDTH], tl.float32)
        for some in range(first, end, PARTS):
            part = some + tl.arange(0, PARTS)
            here = part < end
            place = tl.load(parts + part, mask=here, other=0) * heads + head
            tops = tl.load(part_sum + 2 * place, mask=here, other=NOTHING)
            totals = tl.load(part_sum + 2 * place + 1, mask=here, other=0.0)
            values = tl.load(
                part_out + place[:, None] * value_dim + v[None, :],
                mask=here[:, None] & (v < value_dim)[None, :],
                other=0.0,
            )
            largest = tl.maximum(top, tl.max(tops, 0))
            shrink, weights = tl.exp(top - largest), tl.exp(tops - largest)
            total = total * shrink + tl.sum(totals * weights, 0)
            out = out * shrink + tl.sum(values * weights[:, None], 0)
            top = largest
        to = row.to(tl.int64) * heads + head
        share = tl.where(top > NOTHING, 1.0 / total, 0.0)
        tl.store(lse_at + to, tl.where(top > NOTHING, top + tl.log(total), float("-inf")))
        tl.store(out_at + to * value_dim + v, out * share, mask=v < value_dim)


@triton.jit
def store_new(
    key, key_head, key_row, value, value_head, value_row, stores, addresses, dim, value_dim,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Write new keys and values to where they stay: program (run of rows, KV head)."""
    store, head = stores + 3 * tl.program_id(0), tl.program_id(1)
    row, count, token = tl.load(store), tl.load(store + 1), tl.load(store + 2)
    place = addresses + 6 * tl.program_id(0)
    key_address, value_address = tl.load(place), tl.load(place + 1)
    key_token, value_token = tl.load(place + 3), tl.load(place + 5)
    key_to = key_address.to(key.dtype) + head * tl.load(place + 2) + token * key_token
    value_to = value_address.to(key.dtype) + head * tl.load(place + 4) + token * value_token
    d, v = tl.arange(0, WIDTH)[None, :], tl.arange(0, VALUE_WIDTH)[None, :]
    if key_address != 0:  # else it is not on the device
        for first in range(0, count, ROWS):
            at = (first + tl.arange(0, ROWS))[:, None]
            keys, values = (at < count) & (d < dim), (at < count) & (v < value_dim)
            new = tl.load(key + head * key_head + (row + at) * key_row + d, mask=keys)
            tl.store(key_to + at * key_token + d, new, mask=keys)
            new = tl.load(value + head * value_head + (row + at) * value_row + v, mask=values)
            tl.store(value_to + at * value_token + v, new, mask=values)
