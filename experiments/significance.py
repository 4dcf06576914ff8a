"""Whether two ways of solving the same problems differ by more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mcnemar(wins: int, losses: int) -> float:
    """The p-value of McNemar's exact test, two-sided (McNemar, 1947).

    wins, losses: the problems that only the one way solves, and only the other. Problems that both solve, or neither,
    say nothing. If the ways were equally good, wins would be binomial with probability 1/2.
    """
    discordant, fewer = wins + losses, min(wins, losses)
    return min(1.0, 2 * sum(math.comb(discordant, k) for k in range(fewer + 1)) / 2**discordant)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, made larger for their number, by Holm's method (Holm, 1979), in the given order.

    To call all tests significant whose result is at most 0.05 is wrong about any of them with probability 0.05 at most.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
