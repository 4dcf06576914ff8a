"""Eviction of idle branches: the order, the capacity, and that coming back changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.ownership import Ownership
from tests.helpers.tiers import examples
from ttc import BlockCache, Engine, InvalidInput, Paged
from ttc.branch import Branch
from ttc.tree.eviction import importance


def blocks(engine: Engine) -> int:
    assert engine.cache is not None
    return sum(engine.cache.blocks(segment) for segment in engine.tree.segments())


def kept(engine: Engine, branch: Branch) -> int:
    """Tokens of a branch whose KV is there."""
    return branch.leaf.end


def four(**settings: Any) -> tuple[Engine, list[Branch]]:
    """A prompt of one block and four branches of one block each, all idle."""
    engine = make_engine(cache=BlockCache(block_tokens=8, **settings))
    root = engine.root(list(range(1, 10)))
    branches = engine.fork(root, 4)
    engine.release([root])
    engine.generate(branches, 8)
    return engine, branches


def test_the_stress_test_of_the_paper_evicts_what_is_over() -> None:
    """RKSC appendix H: eight branches of a block each and room for four give four evictions, and
    memory falls."""
    engine = make_engine(cache=BlockCache(capacity_blocks=1 + 4, block_tokens=8))
    root = engine.root(list(range(1, 10)))
    branches = engine.fork(root, 8)
    engine.release([root])
    engine.generate(branches, 8)
    assert engine.cache is not None
    assert (engine.cache.evictions, engine.cache.evicted_tokens, engine.cache.peak_blocks) == (
        4,
        32,
        9,
    )
    assert engine.kv_bytes() == (8 + 4 * 8) * engine.memory.bytes_per_token
    assert sorted(kept(engine, b) for b in branches) == [8] * 4 + [16] * 4


def test_omega_is_score_over_depth() -> None:
    found = [importance(0.9, 0), importance(0.9, 2), importance(0.0, 5)]
    assert found == pytest.approx([0.9, 0.3, 0.0])


def trimmed(engine: Engine, capacity: int, at_work: Sequence[Branch] = ()) -> None:
    assert engine.cache is not None
    engine.cache.capacity_blocks = capacity
    engine.cache.trim(engine.tree, engine.live, at_work)


@pytest.mark.parametrize(
    ("order", "scores", "used", "stay"),
    [
        ("rsbcm", [0.5, 0.2, 0.9, 0.4], None, {0, 2}),
        ("rsbcm", [-0.5, -2.0, -0.1, -1.0], None, {0, 2}),
        ("rsbcm", [0.5, 0.2, 0.9, None], None, {2, 3}),  # what is unrated counts as the best
        ("rsbcm", [-0.5, -0.2, -0.9, None], None, {1, 3}),
        ("lru", [0.9, 0.9, 0.1, 0.1], [3, 1, 2, 4], {0, 3}),
    ],
)
def test_what_is_worth_least_leaves(
    order: str, scores: list[float | None], used: list[int] | None, stay: set[int]
) -> None:
    engine, branches = four(order=order)
    for number, (branch, score) in enumerate(zip(branches, scores, strict=True)):
        branch.score = score
        branch.used_at = used[number] if used else 0
    trimmed(engine, 3)
    assert [kept(engine, b) for b in branches] == [16 if n in stay else 8 for n in range(4)]


def test_a_deeper_block_leaves_before_a_shallow_one_of_like_score() -> None:
    engine, branches = four()
    children = engine.fork(branches[0], 2)  # so that their segments stay apart from their parent's
    engine.generate(children, 8)
    for branch in (*branches, *children):
        branch.score = 0.6
    assert blocks(engine) == 7
    trimmed(engine, 5)
    assert [kept(engine, b) for b in (*children, *branches)] == [16] * 6


def left_first(engine: Engine, branches: list[Branch]) -> list[bool]:
    """Evict one block. Which branches it was taken from."""
    before = [kept(engine, branch) for branch in branches]
    trimmed(engine, blocks(engine) - 1)
    return [kept(engine, branch) < n for branch, n in zip(branches, before, strict=True)]


def one_and_two_deep(step: int = 8) -> tuple[Engine, list[Branch]]:
    """Branches after one step and after two; the one that both stand on is released."""
    engine, branches = four()
    engine.release(branches[2:])
    deeper = engine.fork(branches[1], 2)  # of two, so that the first step keeps its segment
    engine.generate(deeper, step)
    engine.release([branches[1]])
    return engine, [branches[0], *deeper]


@pytest.mark.parametrize(
    ("score", "deep_score", "deep_leaves"),
    [
        (0.5, 0.8, False),  # omega 0.5 / 2 and 0.8 / 3; at depths 0 and 1 it would be 0.5 and 0.4
        (0.5, 0.7, True),  # 0.25 and 0.233; at depths 2 and 3 it would be 0.166 and 0.175
        (0.4, 0.5, True),  # 0.2 and 0.166; taken from the least of these scores, 0 and 0.033
    ],
)
def test_omega_counts_the_steps_of_a_leaf_and_takes_positive_scores_as_they_are(
    score: float, deep_score: float, deep_leaves: bool
) -> None:
    engine, branches = one_and_two_deep()
    for branch, own in zip(branches, (score, deep_score, 1.0), strict=True):
        branch.score = own
    assert left_first(engine, branches) == [not deep_leaves, deep_leaves, False]


@pytest.mark.parametrize("step", [1, 8])
def test_a_segment_counts_the_steps_up_to_it_and_not_those_after_it(step: int) -> None:
    """Once their second steps have left, 0.5 / 2 stands against 0.6 / 2, not 0.6 / 3."""
    engine, branches = one_and_two_deep(step)
    for branch, own in zip(branches, (0.5, 0.6, 0.6), strict=True):
        branch.score = own
    assert [kept(engine, b) for b in branches] == [16, 16 + step, 16 + step]
    assert [sum(left_first(engine, branches)) for _ in range(2)] == [1, 1]
    assert [kept(engine, b) for b in branches] == [16, 16, 16]
    assert left_first(engine, branches) == [True, False, False]


def test_the_unrated_count_as_the_best_that_was_rated_also_below_zero() -> None:
    """Of -1 and -2 the better one stands 1 above the least: 1 / 2 after a step, and 1 / 3 for what
    is unrated after two."""
    engine, branches = one_and_two_deep()
    branches[0].score, branches[2].score = -1.0, -2.0
    assert left_first(engine, branches) == [False, False, True]  # 0 / 3
    assert left_first(engine, branches) == [False, True, False]


@pytest.mark.parametrize("order", ["rsbcm", "lru"])
def test_a_segment_is_worth_what_its_best_branch_is(order: str) -> None:
    engine, branches = four(order=order)
    twin = engine.fork(branches[0], 1)[0]  # ends where its parent does
    for branch, score in zip((*branches, twin), (0.1, 0.5, 0.6, 0.7, 0.9), strict=True):
        branch.score = score
        branch.used_at = int(10 * score)
    assert left_first(engine, [*branches, twin]) == [False, True, False, False, False]


@pytest.mark.parametrize("order", ["rsbcm", "lru"])
def test_of_equals_the_newest_leaves_first(order: str) -> None:
    engine, branches = four(order=order)
    for branch in branches:
        branch.score = 0.5
    newest = max(branches, key=lambda branch: branch.leaf.serial)
    assert left_first(engine, branches) == [branch is newest for branch in branches]


def test_where_nothing_is_rated_the_newest_leaves_first_at_any_depth() -> None:
    engine, branches = one_and_two_deep()
    branches.append(engine.root(list(range(30, 39))))
    for leaving in ({3}, {2}, {1}, {1, 2}):  # at last the first step of both
        assert left_first(engine, branches) == [place in leaving for place in range(4)]


def test_a_segment_stays_where_one_of_its_branches_is_at_work() -> None:
    engine, branches = four()
    twin = engine.fork(branches[0], 1)[0]
    trimmed(engine, 1, [twin])
    assert [kept(engine, branch) for branch in (*branches, twin)] == [16, 8, 8, 8, 16]


def test_lru_evicts_what_was_used_longest_ago() -> None:
    engine, branches = four(order="lru")
    for branch in (branches[2], branches[0], branches[3]):
        engine.score([branch], [[[1]]]).result()
    trimmed(engine, 3)
    assert [kept(engine, b) for b in branches] == [16, 8, 8, 16]


def test_ancestors_stay_while_something_stands_on_them_and_work_is_never_evicted() -> None:
    engine, branches = four(capacity_blocks=1)
    assert blocks(engine) == 1  # the prompt, on which all four stand
    assert [kept(engine, b) for b in branches] == [8] * 4
    engine.generate(branches, 4, sampling=GREEDY)  # all of it is needed meanwhile
    assert engine.cache is not None and engine.cache.peak_blocks > 4


def test_coming_back_gives_the_same_tokens_and_counts_what_it_took() -> None:
    plain = make_engine()
    engine, branches = four(capacity_blocks=1)
    assert branches[0].usage.recomputed_tokens == 0
    engine.generate(branches, 6, sampling=GREEDY)
    assert branches[0].usage.recomputed_tokens == 4 * 8
    for branch in branches:
        twin = plain.root(branch.tokens[:17])
        plain.generate([twin], 6, sampling=GREEDY)
        assert twin.tokens == branch.tokens
        assert twin.logprobs == pytest.approx(branch.logprobs[-6:], abs=1e-4)
    scores = engine.score(branches, [[[3, 4]]] * 4).result()
    for branch, found in zip(branches, scores, strict=True):
        twin = plain.root(branch.tokens)
        assert plain.score([twin], [[[3, 4]]]).result()[0][0] == pytest.approx(found[0], abs=1e-4)


class Evicting(Ownership):
    """Random programs under a cache far too small."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = make_engine(
            cache=BlockCache(3, block_tokens=4), memory=Paged(16 / 2**20, block_tokens=8)
        )

    @rule(data=st.data(), score=st.floats(-2, 2))
    def rate(self, data: Any, score: float) -> None:
        if branch := self.pick(data):
            branch.score = score

    @invariant()
    def owns_exactly_what_is_referenced(self) -> None:
        super().owns_exactly_what_is_referenced()
        assert set(self.engine.live) == set(self.live)


TestEvicting = Evicting.TestCase
TestEvicting.settings = settings(max_examples=examples(25), stateful_step_count=20)


@pytest.mark.parametrize(
    "options", [{"capacity_blocks": 0}, {"block_tokens": 0}, {"order": "fifo"}]
)
def test_bad_settings_are_named(options: Any) -> None:
    with pytest.raises(InvalidInput, match=str(next(iter(options.values())))):
        BlockCache(**options)
