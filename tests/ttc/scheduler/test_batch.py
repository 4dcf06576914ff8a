"""A batch that branches join and leave at any token decodes what each branch would alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import GREEDY, forked, make_engine
from tests.helpers.exactness import assert_same
from tests.helpers.models import prompt
from tests.helpers.offloading import KIB, eight
from tests.helpers.ownership import assert_nothing_left, assert_whole
from tests.helpers.tiers import examples
from ttc import (
    BeamGroups,
    BlockCache,
    Branch,
    DecodeGate,
    Engine,
    Headwise,
    InvalidInput,
    Layerwise,
    Paged,
)
from ttc.attention.fused import SWITCH
from ttc.residency.resident import Resident
from ttc.sampling import Sampling
from ttc.step import Step

POLICIES: list[Any] = [
    Resident(),
    Resident(30 * KIB),
    Layerwise(),
    Layerwise(12 * KIB),
    BeamGroups(12 * KIB, block_tokens=8),
    Paged(),
    Paged(8 * KIB, block_tokens=8),
    Headwise(),
    Headwise(12 * KIB),
]
"""With room for all, and with so little that KV has to move. A token takes 128 bytes."""

SHARED = list(range(1, 13))
SAMPLINGS = [GREEDY, Sampling(), Sampling(0.7, top_k=9), Sampling(1.2, top_p=0.8, min_p=0.01)]


@dataclass(frozen=True)
class Ask:
    """One request: a prompt, how many branches, when it comes (in tokens), and the options of its
    step."""

    prompt: tuple[int, ...]
    limits: tuple[int, ...]
    after: int
    sampling: Sampling
    stop: tuple[str, ...]
    end: tuple[str, ...]
    statistics: bool

    @property
    def step(self) -> Step:
        """What `options` says, for a batch."""
        return Step(max(self.limits), self.stop, self.end, self.statistics)

    def options(self) -> dict[str, Any]:
        return {
            "stop": self.stop,
            "end": self.end,
            "sampling": self.sampling,
            "statistics": self.statistics,
        }


letters = st.integers(40, 120).map(chr)
asks = st.builds(
    Ask,
    prompt=st.tuples(st.sampled_from([0, 6, 12]), st.integers(1, 9), st.integers(0, 3)).map(
        lambda x: (*SHARED[: x[0]], *prompt(x[2], x[1]))
    ),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    after=st.integers(0, 4),
    sampling=st.sampled_from(SAMPLINGS),
    stop=st.lists(letters, max_size=2).map(tuple),
    end=st.lists(letters, max_size=2).map(tuple),
    statistics=st.booleans(),
)


def seen(branch: Branch) -> Any:
    """All that may not depend on what else decodes; figures to the rounding of float32."""
    figures = [pytest.approx(column, abs=1e-3, nan_ok=True) for column in branch.columns()]
    return (
        branch.tokens,
        branch.step_ends,
        branch.step_reasons,
        branch.finish_reason,
        branch.text,
        figures,
    )


def children(engine: Engine, ask: Ask, seed: int) -> list[Branch]:
    root = engine.root(ask.prompt, seed=seed)
    found = engine.fork(root, len(ask.limits))
    engine.release([root])
    return found


@cache
def quiet_engine() -> Engine:
    return make_engine()


@cache
def alone(ask: Ask, seed: int, index: int) -> Any:
    """One branch of a request, decoded by itself in an engine that has nothing else to do."""
    engine = quiet_engine()
    branches = children(engine, ask, seed)
    branch = branches[index]
    engine.generate([branch], ask.limits[index], **ask.options())
    found = seen(branch), branch.usage.generated_tokens
    assert_nothing_left(engine, branches)
    return found


def assert_as_alone(requests: Sequence[Ask], groups: Sequence[Sequence[Branch]]) -> None:
    for seed, (ask, group) in enumerate(zip(requests, groups, strict=True)):
        for index, branch in enumerate(group):
            *rest, figures = alone(ask, seed, index)[0]
            assert [*seen(branch)[:-1]] == rest and list(branch.columns()) == figures


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    requests=st.lists(asks, min_size=1, max_size=5),
    policy=st.integers(0, len(POLICIES) - 1),
    fused=st.booleans(),
    other_work=st.booleans(),
)
def test_whoever_joins_whenever_decodes_what_it_would_alone(
    requests: Sequence[Ask], policy: int, fused: bool, other_work: bool
) -> None:
    engine = make_engine(memory=POLICIES[policy])
    batch, coming = engine.running_batch(), list(enumerate(requests))
    groups: list[list[Branch]] = [[] for _ in requests]
    over: list[Branch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, str(int(fused)))
        tokens = 0
        while coming or len(batch):
            for seed, ask in [pair for pair in coming if pair[1].after <= tokens]:
                groups[seed] = children(engine, ask, seed)
                batch.add(groups[seed], ask.step, ask.sampling, ask.limits)
                coming.remove((seed, ask))
            ended = batch.step()
            assert not set(ended) & set(over)
            over += ended
            if ended and other_work:  # a verifier looks at what has ended, while others decode
                engine.score(ended, [[[1, 2], [3]]] * len(ended)).result()
                assert_whole_but_tails(engine)
            tokens += 1
    branches = [branch for group in groups for branch in group]
    assert set(over) == set(branches)
    assert_as_alone(requests, groups)
    for seed, (ask, group) in enumerate(zip(requests, groups, strict=True)):
        assert group[0].usage.generated_tokens == sum(
            alone(ask, seed, i)[1] for i in range(len(group))
        )
        assert group[0].usage.forward_passes >= max(len(branch.generated) for branch in group)
    assert_nothing_left(engine, branches)


def assert_whole_but_tails(engine: Engine) -> None:
    for tier in (engine.memory.device, engine.memory.host):
        assert tier.budget_bytes is None or tier.used_bytes <= tier.budget_bytes


def test_rows_join_at_the_next_token() -> None:
    engine = make_engine()
    first, second, third = forked(engine, 4), forked(engine, 3), forked(engine, 2)
    batch, rows = engine.running_batch(), list[int]()
    forward = engine.runner.forward

    def watched(tokens: Any, *arguments: Any) -> Any:
        rows.append(len(tokens))
        return forward(tokens, *arguments)

    engine.runner.forward = watched  # type: ignore[method-assign]
    batch.add(first, Step(6), limits=[2, 2, 6, 6])
    batch.step()
    batch.add(second, Step(3))
    assert (batch.step(), len(batch)) == (first[:2], 5)
    batch.add(third, Step(2))
    batch.finish()
    assert rows == [4, 7, 7, 7, 2, 2]
    engine.runner.forward = forward  # type: ignore[method-assign]
    assert_nothing_left(engine, [*first, *second, *third])


def test_a_plan_is_kept_from_token_to_token_and_also_when_the_tree_is_cut() -> None:
    engine = make_engine()
    root = engine.root(list(range(1, 30)))
    batch = engine.running_batch()
    (branch,) = engine.fork(root, 1)
    batch.add([branch], Step(8), GREEDY)
    batch.step()
    plan = batch.plan
    other = engine.root(list(range(50, 60)))
    batch.step()
    assert plan is batch.plan
    # shares the first 19 tokens, so their segment is cut there
    cut = engine.root([*range(1, 20), 99, 98])
    batch.step()
    assert plan is batch.plan
    batch.finish()
    (again,) = engine.fork(root, 1)
    engine.generate([again], 8, sampling=GREEDY)
    assert again.tokens == branch.tokens
    assert_whole(engine, [root, branch, again, other, cut])
    assert_nothing_left(engine, [root, branch, again, other, cut])


def test_calls_wait_for_room_in_the_order_in_which_they_came() -> None:
    engine = make_engine(memory=Resident(20 * 128 / 2**30))
    first, second, third = (forked(engine, 1) for _ in range(3))
    batch = engine.running_batch()
    batch.add(first, Step(8))
    batch.step()
    batch.add(second, Step(10))
    batch.add(third, Step(1))
    assert [len(b.generated) for b in (*first, *second, *third)] == [1, 0, 0]
    while not first[0].step_ends:
        batch.step()
        assert not second[0].generated and not third[0].generated
    engine.release(first)
    batch.finish()
    assert [len(b.generated) for b in (*second, *third)] == [10, 1]
    assert_nothing_left(engine, [*second, *third])


def test_groups_that_a_policy_keeps_decode_their_whole_step() -> None:
    engine = make_engine(memory=BeamGroups(7.5 * KIB, block_tokens=8))
    branches = eight(engine)
    batch, sizes = engine.running_batch(), list[list[int]]()
    batch.add(branches[:6], Step(5))
    over = batch.step()
    assert 0 < len(over) < 6 and {len(b.generated) for b in over} == {5}
    assert {len(b.generated) for b in branches if b not in over} == {0}
    batch.add(branches[6:], Step(2))  # they come into the groups that are left
    while len(batch):
        sizes.append([len(b.generated) for b in batch.step()])
    assert sorted(n for group in sizes for n in group) == [2, 2] + [5] * (6 - len(over))
    assert_nothing_left(engine, branches)


@pytest.mark.parametrize("released", [False, True])
def test_who_leaves_in_the_middle_leaves_nothing(released: bool) -> None:
    """A batch that is closed, or branches that are released while they decode."""
    for policy in POLICIES:
        engine = make_engine(memory=policy)
        branches, others = forked(engine, 4), forked(engine, 1)
        batch = engine.running_batch()
        batch.add(branches, Step(5), GREEDY)
        batch.step()
        batch.add(others, Step(4))
        if released:
            engine.release(branches[1:3])
            branches = branches[::3]
            batch.finish()
            assert branches[0].tokens == branches[1].tokens and len(branches[0].generated) == 5
        else:
            batch.close()
            batch.close()
        assert len(batch) == 0
        assert_nothing_left(engine, [*branches, *others])


@pytest.mark.parametrize("after", [1, 4])
def test_branches_may_be_scored_while_they_decode(after: int) -> None:
    def written(scored: bool) -> tuple[list[list[int]], list[list[float]], list[float]]:
        engine, scores = make_engine(), list[float]()
        branches = forked(engine, 2)
        batch = engine.running_batch()
        batch.add(branches, Step(20), Sampling(), limits=[9, 20])
        for _ in range(after):
            batch.step()
        if scored:
            scores = [rows[0][0] for rows in engine.score(branches, [[[7]]] * 2).result()]
            alone = [rows[0][0] for rows in engine.score(branches, [[[7]]] * 2).result()]
            assert scores == pytest.approx(alone, abs=1e-4)
        while len(batch):
            batch.step()
        return [b.tokens for b in branches], [b.logprobs for b in branches], scores

    tokens, logprobs, _ = written(scored=False)
    same_tokens, same_logprobs, _ = written(scored=True)
    assert tokens == same_tokens
    for expected, row in zip(logprobs, same_logprobs, strict=True):
        assert row == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(
    requests=st.lists(asks, min_size=2, max_size=3),
    kind=st.sampled_from([Layerwise, Paged, Headwise, BeamGroups]),
    kib=st.integers(9, 16),
    turns=st.lists(st.integers(0, 5), max_size=30),
)
def test_batches_of_one_engine_decode_what_each_would_alone(
    requests: Sequence[Ask], kind: Any, kib: int, turns: Sequence[int]
) -> None:
    """Whichever batch has the next turn, and whatever pass comes between: threads may come in any
    order."""
    engine = make_engine(memory=kind(kib * KIB, block_tokens=8))
    groups = [children(engine, ask, seed) for seed, ask in enumerate(requests)]
    batches = [engine.running_batch() for _ in requests]
    coming = list(range(len(requests)))
    turns = [*turns, *range(len(requests))]
    while coming or any(map(len, batches)):
        for turn in turns:
            index = turn % len(requests)
            if turn >= len(requests) and not any(map(len, batches)):
                engine.score(groups[index], [[[1, 2], [3]]] * len(groups[index])).result()
            elif index in coming:
                coming.remove(index)
                ask = requests[index]
                batches[index].add(groups[index], ask.step, ask.sampling, ask.limits)
            else:
                batches[index].step()
            assert_whole_but_tails(engine)
    assert_as_alone(requests, groups)
    assert_nothing_left(engine, [branch for group in groups for branch in group])


def test_a_gate_compares_those_who_began_together() -> None:
    gate = DecodeGate(theta=0.0, r_gap=0.0, min_tokens=2)
    engine, plain = make_engine(gate=gate), make_engine(gate=gate)
    expected = forked(plain, 3)
    plain.generate(expected, 6)
    branches, others = forked(engine, 3), forked(engine, 1)
    batch = engine.running_batch()
    batch.add(others, Step(4))
    batch.step()
    batch.add(branches, Step(6))
    batch.finish()
    assert [(b.tokens, b.finish_reason) for b in branches] == [
        (b.tokens, b.finish_reason) for b in expected
    ]
    assert (
        sum(b.gated for b in branches) == branches[0].usage.gated_branches == 2
        and not others[0].gated
    )
    assert_nothing_left(engine, [*branches, *others])


def test_a_cache_takes_nothing_from_those_who_decode() -> None:
    engine = make_engine(cache=BlockCache(1, block_tokens=4))
    branches = forked(engine, 3)
    batch = engine.running_batch()
    batch.add(branches, Step(6))
    batch.step()
    idle = engine.root(list(range(60, 90)))
    while len(batch):
        batch.step()
        engine.score([idle], [[[1]]]).result()
    assert all(branch.usage.recomputed_tokens == 0 for branch in branches)
    whole = make_engine()
    expected = forked(whole, 3)
    whole.generate(expected, 6)
    assert_same(branches, expected)


def test_what_cannot_be_added_is_refused_and_changes_nothing() -> None:
    engine = make_engine()
    branches = forked(engine, 2)
    batch = engine.running_batch()
    batch.add(branches[:1], Step(3))
    with pytest.raises(InvalidInput, match="decoding already"):
        batch.add(branches, Step(3))
    with pytest.raises(InvalidInput, match="max_tokens=0"):
        batch.add(branches[1:], Step(0))
    batch.add([], Step(3))
    assert len(batch) == 1
    batch.step()
    engine.release(branches)
    assert len(batch) == 0 and engine.kv_bytes() == 0


def test_as_many_rows_as_may_decode_at_once_do() -> None:
    engine = make_engine()
    one, *others = engine.roots([prompt(seed, 9) for seed in range(4)]).result()
    batch = engine.running_batch(max_rows=3)
    batch.add([one], Step(5), GREEDY)
    batch.step()
    batch.add(others[:2], Step(5), GREEDY)
    batch.add(others[2:], Step(5), GREEDY)
    batch.step()
    assert [len(branch.generated) for branch in (one, *others)] == [2, 1, 1, 0]


def test_those_that_are_preempted_wait_in_the_order_in_which_they_came() -> None:
    engine = make_engine()
    branches = engine.roots([prompt(seed, 9) for seed in range(4)]).result()
    batch = engine.running_batch(max_rows=3)
    came = [branches[n] for n in (2, 0, 3, 1)]
    for branch in came:
        batch.add([branch], Step(5), GREEDY)
    batch.step()
    batch.preempt()
    assert [row.branch for row in batch.admission] == came


def test_a_batch_has_a_call_finished_where_nothing_else_makes_room() -> None:
    def outcome(tokens: int | None) -> tuple[list[int], list[float]]:
        size = make_engine(context=128).memory.bytes_per_token
        memory = Resident(None if tokens is None else tokens * size / 2**30)
        engine = make_engine(context=128, memory=memory, prefill_tokens=4)
        rated, written = engine.roots([prompt(1, 12), prompt(2, 12)]).result()
        call = engine.score([rated], [[prompt(3, 8)]])
        call.step()
        batch = engine.running_batch()
        batch.add([written], Step(12), GREEDY)
        while len(batch):
            batch.step()
        ((scores,),) = call.result()
        return written.generated, [round(score, 4) for score in scores]

    assert outcome(30) == outcome(None)
