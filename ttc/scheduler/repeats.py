"""Whether tokens go in circles."""

from __future__ import annotations

import struct
from collections.abc import Sequence

SHORTEST, LONGEST = 4, 200
"""The periods that are looked for, in tokens."""
TIMES = 3
"""So often a pattern stands at the end before it counts."""
SHORT_TOKENS = 33
"""So many tokens a pattern below the shortest period fills before it counts."""
WIDTH = struct.calcsize("i")


def repeats(tokens: Sequence[int], first: int = 0) -> bool:
    """Whether the last tokens, of those from `first` on, are one pattern of 4 to 200 tokens, three
    times in a row. A shorter one, as in 0.33333 or in a Markdown table, counts once it fills
    `SHORT_TOKENS`."""
    if len(tokens) - first < TIMES * SHORTEST:
        return False
    return any(
        len(tokens) - first >= TIMES * period and _is_loop(tokens[-TIMES * period :], period)
        for period in _periods(tokens[max(first, len(tokens) - LONGEST - 2) :])
    )


def _periods(window: Sequence[int]) -> list[int]:
    """How long ago the last two tokens of a window stood in it before, from `SHORTEST` on."""
    text = struct.pack(f"{len(window)}i", *window)  # bytes are searched in C
    last, places = text[-2 * WIDTH :], list[int]()
    place = len(text) - SHORTEST * WIDTH
    while (place := text.rfind(last, 0, place)) >= 0:
        if place % WIDTH == 0:
            places.append(place // WIDTH)
        place += 2 * WIDTH - 1
    return [len(window) - 2 - place for place in places]


def _is_loop(tokens: Sequence[int], period: int) -> bool:
    """Whether tokens have a period, and are no row of a shorter pattern that is not long enough."""
    if not _is_periodic(tokens, period):
        return False
    long = len(tokens) >= SHORT_TOKENS
    return long or not any(_is_periodic(tokens, short) for short in range(1, SHORTEST))


def _is_periodic(tokens: Sequence[int], period: int) -> bool:
    return tokens[period:] == tokens[:-period]
