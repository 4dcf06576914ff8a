"""Sampling on a CPU, compiled by numba: a row of logits is read two or three times while the cache
holds it.

The same choice as `ttc.sampling.draw_with_torch`, which is the specification. Logits are taken as
the bits of float32, or of bfloat16, which is float32's upper half (`shift` 16): comparing them as
integers finds the largest and any NaN. "Scaled" is divided by the temperature, in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

BLOCK = 64
"""Logits whose maximum is kept, so that a search for large ones skips the rest."""

BINS = 1024
"""Intervals that a sum of probabilities from the top is first found in."""

LOWEST = np.float32(-87.0)
"""exp() of less is no normal float32; it counts as 0."""

C1, C2, C3 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
INFINITY_BITS = 0x7F800000
SUM = {"reassoc", "nsz"}  # sums in any order, which lets the compiler use vectors


@intrinsic
def _float32_of(_: Any, bits: Any) -> Any:
    """The float32 number with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


_as_float32: Any = _float32_of


@njit(cache=True)
def _exp(x: Any) -> Any:
    """exp(x) in float32 for x <= 0, to 2e-7 (Cephes' expf: a power of two times a polynomial)."""
    inside = max(x, LOWEST)
    n: Any = np.floor(inside * np.float32(1.44269504) + np.float32(0.5))
    r = inside - n * np.float32(0.693359375)
    r = r - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = _as_float32(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
    return (p * r * r + r + np.float32(1.0)) * power if x >= LOWEST else np.float32(0.0)


@njit(cache=True)
def _scaled(bits: Any, shift: Any, temperature: Any) -> Any:
    """A logit, divided by `temperature` if that is not None: a division takes as long as ten other
    operations."""
    logit = _as_float32(np.int32(np.int32(bits) << shift))
    return logit if temperature is None else logit / temperature


@njit(cache=True)
def _block_maxima(row: Any, shift: Any, maxima: Any) -> Any:
    """Fill in each block's largest logit. Returns the row's; NaN if there is a NaN."""
    largest: Any = -np.inf
    magnitude: Any = np.int32(0)
    for block in range(len(maxima)):
        top: Any = np.int32(-0x80000000)
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, len(row))):
            bits = np.int32(np.int32(row[i]) << shift)
            magnitude = max(magnitude, np.int32(bits & np.int32(0x7FFFFFFF)))
            top = max(
                top,
                np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF))),
            )
        bits = np.int32(top ^ np.int32(np.int32(top >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        maxima[block] = _as_float32(bits)
        largest = max(largest, maxima[block])
    return np.float32(np.nan) if magnitude > INFINITY_BITS else np.float32(largest)


@njit(cache=True, fastmath=SUM)
def _masses(row: Any, shift: Any, temperature: Any, top: Any, low: Any, high: Any) -> Any:
    """Sums of exp(scaled - top): over the row, and over low <= scaled <= high. temperature: None
    for 1."""
    total: Any = 0.0
    between: Any = 0.0
    for start in range(0, len(row), 4 * BLOCK):
        part, inside = np.float32(0.0), np.float32(0.0)
        for i in range(start, min(start + 4 * BLOCK, len(row))):
            x = _scaled(row[i], shift, temperature)
            weight = _exp(x - top)
            part += weight
            inside += weight if (x >= low) & (x <= high) else np.float32(0.0)
        total += part
        between += inside
    return total, between


@njit(cache=True, fastmath=SUM)
def _distances(row: Any, shift: Any, top: Any) -> Any:
    """Sums of exp(logit - top) * (logit - top), and of logit - top."""
    weighted: Any = 0.0
    plain: Any = 0.0
    for start in range(0, len(row), 4 * BLOCK):
        part, rest = np.float32(0.0), np.float32(0.0)
        for i in range(start, min(start + 4 * BLOCK, len(row))):
            distance = _scaled(row[i], shift, None) - top
            x = max(distance, LOWEST)
            part += _exp(x) * x
            rest += distance
        weighted += part
        plain += rest
    return weighted, plain


@njit(cache=True)
def _select(values: Any, k: Any) -> Any:
    """Move the k largest of `values` to its end, the smallest of them first (Hoare's quickselect).
    Returns them."""
    first, last, place = 0, len(values) - 1, len(values) - k
    while first < last:
        pivot, i, j = values[(first + last) // 2], first, last
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if place <= j:
            last = j
        elif place >= i:
            first = i
        else:
            break
    return values[place:]


@njit(cache=True)
def _largest(row: Any, shift: Any, temperature: Any, maxima: Any, k: Any) -> Any:
    """The k largest scaled logits, the smallest of them first. Each of k blocks has one as large as
    the k-th largest of the blocks' maxima, so only larger ones are looked at."""
    least = np.float32(-np.inf)
    if k <= len(maxima):
        least = _select(maxima.copy(), k)[0] / temperature
    values = np.empty(len(row), np.float32)
    count = 0
    for block in range(len(maxima)):
        if maxima[block] / temperature >= least:
            for i in range(block * BLOCK, min(block * BLOCK + BLOCK, len(row))):
                x = _scaled(row[i], shift, temperature)
                if x >= least:
                    values[count] = x
                    count += 1
    return _select(values[:count], k)


@njit(cache=True)
def _cut_at_mass(
    row: Any,
    shift: Any,
    temperature: Any,
    maxima: Any,
    top: Any,
    floor: Any,
    target: Any,
    head: Any,
) -> Any:
    """Top-p among scaled logits >= floor: the last token kept, as (scaled, index), in the order of
    `is_kept`.

    A token is kept while the sum of exp(scaled - top) over those before it is less than `target`.
    First the interval of scaled values where the sum reaches it is found, within `head` of the
    maximum if it lies there; only its tokens are sorted.
    """
    before, start, width = 0.0, np.float32(0.0), np.float32(head)
    sums, counts = np.empty(BINS), np.empty(BINS, np.int64)
    for _attempt in range(2):
        sums[:] = 0
        counts[:] = 0
        scale = np.float32(BINS) / width
        for block in range(len(maxima)):
            if top - maxima[block] / temperature >= start + width:
                continue
            for i in range(block * BLOCK, min(block * BLOCK + BLOCK, len(row))):
                x = _scaled(row[i], shift, temperature)
                if x >= floor and start <= top - x < start + width:
                    bin = min(int((top - x - start) * scale), BINS - 1)
                    sums[bin] += _exp(x - top)
                    counts[bin] += 1
        crossing = 0
        while crossing < BINS and before + sums[crossing] < target:
            before += sums[crossing]
            crossing += 1
        if crossing < BINS:
            break
        start, width = np.float32(head), -LOWEST
    if crossing == BINS:  # everything is kept, by rounding
        return floor, len(row)
    values, tokens, count = (
        np.empty(counts[crossing], np.float32),
        np.empty(counts[crossing], np.int64),
        0,
    )
    for block in range(len(maxima)):
        if top - maxima[block] / temperature >= start + width:
            continue
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, len(row))):
            x = _scaled(row[i], shift, temperature)
            inside = x >= floor and start <= top - x < start + width
            if inside and min(int((top - x - start) * scale), BINS - 1) == crossing:
                values[count], tokens[count] = -x, i
                count += 1
    order = np.argsort(values, kind="mergesort")
    last = order[0]
    for place in order:
        if before >= target:
            break
        last = place
        before += _exp(-values[place] - top)
    return -values[last], tokens[last]


@njit(cache=True)
def is_kept(x: Any, token: Any, cut: Any, cut_token: Any) -> Any:
    """Whether the filters leave a token: larger logits come first, and of equal ones the earlier
    token."""
    return x > cut or (x == cut and token <= cut_token)


@njit(cache=True)
def cut_of(
    row: Any, shift: Any, temperature: Any, maxima: Any, top: Any, total: Any, top_k: Any, top_p: Any, log_min_p: Any,
    head: Any,
) -> Any:  # fmt: skip
    """The last token that top-k, top-p and min-p leave in a row, as (scaled logit, index).

    top: the largest scaled logit. total: the sum of exp(logit - largest logit), at temperature 1.
    """
    cut, cut_token = np.float32(-np.inf), len(row)
    if 0 < top_k < len(row):
        cut = _largest(row, shift, temperature, maxima, top_k)[0]
    if top_p < 1:
        if cut > -np.inf or temperature != 1:
            _, total = _masses(row, shift, temperature, top, cut, top)
        cut, cut_token = _cut_at_mass(
            row, shift, temperature, maxima, top, cut, top_p * total, head
        )
    floor = np.float32(top + log_min_p)
    if floor > cut:
        cut, cut_token = floor, len(row)
    return cut, cut_token


@njit(cache=True)
def mixed(state: Any, counter: Any) -> Any:
    """SplitMix64, as in `ttc.sampling`."""
    x = state + (counter + np.uint64(1)) * C1
    x = (x ^ (x >> np.uint64(30))) * C2
    x = (x ^ (x >> np.uint64(27))) * C3
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def _uniform(state: Any, counter: Any) -> Any:
    return (np.float64(mixed(state, counter) >> np.uint64(11)) + 0.5) * 2.0**-53


@njit(cache=True)
def _race(
    row: Any, shift: Any, temperature: Any, maxima: Any, top: Any, cut: Any, cut_token: Any, above: Any, upto: Any,
    state: Any,
) -> Any:  # fmt: skip
    """The kept token with above < scaled <= upto whose scaled logit - top plus Gumbel noise is
    largest, and that sum.

    The sum beats `best` if -log(u) < exp(x - top - best), and -log(u) >= 1 - u: few tokens need a
    logarithm.
    """
    winner, best, bound = -1, -np.inf, np.inf
    for block in range(len(maxima)):
        highest = maxima[block] / temperature
        if highest <= above or highest < cut:
            continue
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, len(row))):
            x = _scaled(row[i], shift, temperature)
            if not above < x <= upto or not is_kept(x, i, cut, cut_token):
                continue
            u = _uniform(state, np.uint64(i))
            if 1 - u > bound * _exp(x - top):
                continue
            score = np.float64(x - top) - np.log(-np.log(u))
            if score > best:
                winner, best, bound = i, score, np.exp(-score) * 1.00001
    return winner, best


@njit(cache=True)
def _first(row: Any, shift: Any, maxima: Any, value: Any) -> Any:
    """The first token with this logit."""
    for block in range(len(maxima)):
        if maxima[block] == value:
            for i in range(block * BLOCK, min(block * BLOCK + BLOCK, len(row))):
                if _scaled(row[i], shift, np.float32(1.0)) == value:
                    return i
    return -1


@njit(cache=True)
def _one_row(
    row: Any, shift: Any, temperature: Any, top_k: Any, top_p: Any, log_min_p: Any, head: Any, tail: Any, state: Any,
    confidence_k: Any, out: Any,
) -> None:  # fmt: skip
    one, nothing = np.float32(1.0), np.float32(-np.inf)
    maxima = np.empty((len(row) + BLOCK - 1) // BLOCK, np.float32)
    largest = _block_maxima(row, shift, maxima)
    if not np.isfinite(largest):
        out[:] = -1
        return
    top = largest / temperature if temperature > 0 else largest
    limit = np.float32(top - head)
    # at a lower temperature the same tokens lie beyond another logit, and some more are counted in,
    # for rounding
    edge = (
        limit
        if temperature == 1
        else np.float32(largest - head * temperature * np.float32(1 - 1e-5))
    )
    total, beyond = _masses(row, shift, None, largest, nothing, edge)
    # so low a temperature is greedy: the noise is lost in rounding
    if temperature == 0 or limit >= top:
        token = _first(row, shift, maxima, largest)
    else:
        cut, cut_token = cut_of(
            row, shift, temperature, maxima, top, total, top_k, top_p, log_min_p, head
        )
        token, best = _race(row, shift, temperature, maxima, top, cut, cut_token, limit, top, state)
        noise = -np.log(-np.log(_uniform(state, tail)))
        # the tokens beyond the head take part as one; filters and temperatures below 1 leave them
        # less than `beyond`
        if cut <= limit and (
            temperature > 1 or (beyond > 0 and np.log(1.001 * beyond) + noise > best)
        ):
            if cut > nothing or temperature != 1:
                _, beyond = _masses(row, shift, temperature, top, cut, limit)
            for i in range(cut_token + 1, len(row)):
                if _scaled(row[i], shift, temperature) == cut:
                    beyond -= _exp(cut - top)
            if beyond > 0 and np.log(beyond) + noise > best:
                lowest = np.float32(top + LOWEST)
                other, _ = _race(
                    row, shift, temperature, maxima, top, cut, cut_token, lowest, limit, state
                )
                token = token if other < 0 else other
    out[0] = token
    out[1] = _scaled(row[token], shift, None) - largest - np.log(total)
    out[2] = 1 / total
    if confidence_k > 0:
        weighted, plain = _distances(row, shift, largest)
        out[3] = np.log(total) - weighted / total
        k = min(confidence_k, len(row))
        out[4] = -np.log(total)
        for x in _largest(row, shift, one, maxima, k):
            out[4] += (x - largest) / k
        out[5] = np.log(total) - plain / len(row) - np.log(len(row))


@njit(cache=True, nogil=True)
def draw_rows(
    logits: Any, shift: Any, temperature: Any, top_k: Any, top_p: Any, log_min_p: Any, head: Any, tail: Any,
    states: Any, confidence_k: Any, out: Any,
) -> None:  # fmt: skip
    """Fill in the columns of `ttc.sampling.Draws` for each row; -1 where the logits are not finite.

    logits: (rows, vocab), int32 or, with `shift` 16, int16. states: (rows,) uint64. out: float64,
    (rows, 3), or (rows, 6) where `confidence_k` is above 0: how many of the likeliest tokens the
    mean log-probability is of.
    """
    for r in range(len(logits)):
        _one_row(
            logits[r],
            shift,
            temperature,
            top_k,
            top_p,
            log_min_p,
            head,
            tail,
            states[r],
            confidence_k,
            out[r],
        )
