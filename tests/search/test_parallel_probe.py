"""Parallel-Probe against the authors' rule: when it stops, whom it drops, and what it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from search import ParallelProbe, solve
from search.certainty_probe import PROBE
from tests.helpers.backends import Dictated
from ttc import Branch, InvalidInput
from ttc.results import Result

EVERY = 4


def probed(table: Sequence[Sequence[int]], search: ParallelProbe) -> Result:
    """Chain i answers its probe of round r with table[i][r]."""

    def says(branch: Branch) -> str:
        before, asked, said = branch.text.partition(PROBE)
        if not asked:
            return "x" * (1000 - len(before))
        return f"{table[branch.path[0]][len(before) // EVERY - 1]}}}"[len(said) :]

    backend = Dictated(says)
    result = solve(search, problem="q", engine=backend)
    assert result.error is None and not backend.live
    return result


def reference(table: Sequence[Sequence[int]], search: ParallelProbe) -> tuple[int, list[int], int]:
    """The authors' rule: (rounds, the chains that are left, the answer)."""
    active, disagreed = list(range(search.n)), [0] * search.n
    last, streak = -1, 0
    for number in range(search.max_tokens // search.every):
        (last_time, last) = last, Counter(table[i][number] for i in active).most_common(1)[0][0]
        streak = streak + 1 if last == last_time else 1
        if number < search.warmup:
            continue
        share = sum(table[i][number] == last for i in active) / len(active)
        if share >= search.prune_share and len(active) > search.least:
            for i in active:
                disagreed[i] = disagreed[i] + 1 if table[i][number] != last else 0
            for i in list(active):
                if disagreed[i] >= search.patience and len(active) > search.least:
                    active.remove(i)
        if streak >= search.agree:
            break
    return number + 1, active, last


@pytest.mark.parametrize("seed", range(12))
def test_chains_end_are_dropped_and_vote_by_the_authors_rule(seed: int) -> None:
    random = np.random.default_rng(seed)
    table = random.choice([3, 4, 5], size=(6, 10), p=[0.5, 0.3, 0.2]).tolist()
    search = ParallelProbe(n=6, max_tokens=40, every=EVERY, agree=4, patience=2, least=2)
    result = probed(table, search)
    rounds, left, answer = reference(table, search)
    assert result.answer == str(answer)
    assert sorted(branch.path[0] for branch in result.branches) == left
    written = [node.tokens for node in result.tree if set(node.text) == {"x"}]
    assert max(written) == rounds * EVERY


def test_a_majority_that_stays_ends_all_chains() -> None:
    result = probed([[7] * 9] * 4, ParallelProbe(n=4, max_tokens=36, every=EVERY, agree=3))
    assert result.answer == "7" and all(b.text == "x" * 12 + PROBE + "7}" for b in result.branches)
    assert result.usage.generated_tokens == 4 * 3 * (EVERY + 2)


def test_chains_that_end_by_themselves_vote_with_their_answers() -> None:
    texts = ["The answer is 4.", "The answer is 5.", "The answer is 4."]
    search = ParallelProbe(n=3, max_tokens=64, every=32)
    assert solve(search, problem="q", engine=Dictated(texts)).answer == "4"


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidInput, match="prune_share=2 must be from 0 to 1"):
        ParallelProbe(prune_share=2)
