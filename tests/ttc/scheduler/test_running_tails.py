"""Tails take room as they are written, rows wait where there is none, and no result changes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import GREEDY, fail_at, forked, make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import build, prompt
from tests.helpers.offloading import KIB
from tests.helpers.ownership import assert_nothing_left, assert_whole
from tests.helpers.recurrent import engine_of, plain
from tests.helpers.tiers import examples, slow, some_quick
from tests.helpers.tokenizers import Letters
from ttc import (
    BeamGroups,
    Branch,
    Capture,
    DecodeGate,
    EarlyExit,
    Engine,
    ExitReport,
    Headwise,
    Layerwise,
    OutOfMemory,
    Paged,
    Sampling,
)
from ttc.residency.resident import Resident
from ttc.scheduler import running_tails
from ttc.step import Step

TOKEN = KIB / 4
"""GiB of a token of the small models."""
POLICIES: dict[str, Any] = {
    "resident": Resident(),
    "resident, little room": Resident(90 * TOKEN),
    "layerwise": Layerwise(80 * TOKEN),
    "layerwise, no budget": Layerwise(),
    "beam_groups": BeamGroups(90 * TOKEN, block_tokens=8),
    "beam_groups, no budget": BeamGroups(block_tokens=8),
    "paged": Paged(40 * TOKEN, block_tokens=8),
    "paged, no budget": Paged(block_tokens=8),
    "headwise": Headwise(60 * TOKEN, block_tokens=8),
    "headwise, no budget": Headwise(),
    "capture": Capture(250 * TOKEN, act_share=0.5, block_tokens=8),
}


def make_tiny(patch: pytest.MonkeyPatch, short: int = 3, first: int = 2) -> None:
    """Have tails take room for few tokens at a time."""
    patch.setattr(running_tails, "SHORT_TOKENS", short)
    patch.setattr(running_tails, "FIRST_TOKENS", first)
    patch.setattr(running_tails, "SHORT_STEP_TOKENS", short)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny(monkeypatch)


LIMITS = [25, 4, 13, 18]


def grown(engine: Engine) -> list[Branch]:
    """Four branches on two prompts."""
    first, second = engine.roots([prompt(1, 17), prompt(2, 9)]).result()
    branches = [*engine.fork(first, 2), *engine.fork(second, 2)]
    engine.release([first, second])
    engine.generate(branches, LIMITS, sampling=GREEDY)
    return branches


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_branches_that_grow_part_by_part_are_like_plain_transformers(
    policy: str, tiny: None
) -> None:
    model = build("opt" if policy == "capture" else "llama")
    memory = POLICIES[policy]
    engine = Engine(copy.deepcopy(model), Letters(), prefill_tokens=5, memory=memory)
    branches = grown(engine)
    for branch in branches:
        assert_like_plain(model, branch)
    assert [len(branch.generated) for branch in branches] == LIMITS
    assert_nothing_left(engine, branches)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Resident(), BeamGroups(block_tokens=8), Paged(4 * KIB)])
@pytest.mark.parametrize(
    "case", some_quick(["mamba2", "jamba", "qwen3_5_text", "lfm2"], ["qwen3_5_text"])
)
def test_recurrent_states_go_on_from_part_to_part(case: str, policy: Any, tiny: None) -> None:
    engine = engine_of(case, memory=policy)
    engine.memory.device.budget_bytes = (
        None if policy.budget_gib is None else 6 * engine.memory.states.nbytes + 2**15
    )
    branches = grown(engine)
    for branch in branches:
        assert_like_plain(plain(case), branch)
    # one at each branch's end, and at most one where it began
    assert len(engine.memory.states.live) <= 2 * len(branches)
    assert_nothing_left(engine, branches)


def test_a_tail_becomes_a_segment_when_it_is_full(tiny: None) -> None:
    engine = make_engine()
    batch = engine.running_batch()
    branches = forked(engine, 3)
    batch.add(branches, Step(30))
    rooms = set[int]()
    while len(batch):
        batch.step()
        if batch.tails is not None:
            rooms.add(batch.tails.tokens)
            assert all(len(b.tokens) - 1 - b.leaf.end <= batch.tails.tokens for b in branches)
    assert rooms == {2, 3}
    assert all(len(branch.leaf.path()) <= 4 for branch in branches)  # joined as they come
    assert_nothing_left(engine, branches)


@pytest.mark.parametrize(
    ("limit", "policy", "room"),
    [(20, None, 20), (256, None, 32), (256, Paged(999 * KIB), 256), (300, Paged(999 * KIB), 256)],
)
def test_a_short_step_has_room_for_more_of_it_at_first(limit: int, policy: Any, room: int) -> None:
    engine = make_engine(context=512, memory=policy)
    batch = engine.running_batch()
    branches = forked(engine, 2)
    batch.add(branches, Step(limit))
    batch.step()
    assert batch.tails is not None and batch.tails.tokens == room


@dataclass(frozen=True)
class EndsAt:
    """Ends each branch at a length of its own, which nobody knows before."""

    lengths: Sequence[int]

    def losers(self, problem: Sequence[Branch]) -> list[Branch]:
        return [b for b in problem if len(b.generated) == self.lengths[b.path[-1]]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "written"), [(4000, 33), (4000, 60), (4000, 300), slow((1500, 900))]
)
def test_the_most_kv_at_a_time_is_little_more_than_what_is_written(
    limit: int, written: int
) -> None:
    """Branches of many lengths, as in best of 16."""
    lengths = [1 + (7 * i + 5) * written // 110 for i in range(16)]
    engine = make_engine(context=5000, gate=EndsAt(lengths))
    branches = forked(engine, 16)
    engine.generate(branches, limit)
    assert [len(branch.generated) for branch in branches] == lengths
    device = engine.memory.device
    assert device.peak_bytes <= 1.3 * device.used_bytes
    assert_nothing_left(engine, branches)


# ---------------------------------------------------------------- rows that wait


def decoded(engine: Engine, lengths: Sequence[int], limits: Sequence[int], stop: str) -> Any:
    """What branches of several prompts decode, all in one call; and the branches."""
    roots = engine.roots([prompt(i, n) for i, n in enumerate(lengths)]).result()
    branches = [child for root in roots for child in engine.fork(root, 3)]
    engine.release(roots)
    room = [limits[i % len(limits)] for i in range(len(branches))]
    engine.generate(branches, room, stop=[stop], sampling=Sampling())
    return [(b.tokens, b.step_reasons, b.finish_reason) for b in branches], branches


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    kind=st.sampled_from([Resident, Resident, Paged, BeamGroups, Headwise, Layerwise]),
    lengths=st.lists(st.integers(2, 14), min_size=1, max_size=3),
    limits=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    stop=st.integers(40, 120).map(chr),
    spare=st.integers(0, 30),
    parts=st.tuples(st.integers(1, 9), st.integers(1, 4)),
)
def test_rows_wait_and_come_back_to_the_same_tokens(
    kind: Any,
    lengths: Sequence[int],
    limits: Sequence[int],
    stop: str,
    spare: int,
    parts: tuple[int, int],
) -> None:
    """With room for one branch alone, and for `spare` tokens more."""
    expected, _ = decoded(make_engine(), lengths, limits, stop)
    least = sum(lengths) + 2 * max(limits) + spare
    options = {} if kind is Resident else {"block_tokens": 8}
    engine = make_engine(memory=kind((least + 16) * KIB / 8, **options))
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch, *parts)
        found, branches = decoded(engine, lengths, limits, stop)
    assert found == expected
    device = engine.memory.device
    assert device.budget_bytes is not None and device.peak_bytes <= device.budget_bytes
    assert_nothing_left(engine, branches)


def test_the_youngest_let_go_of_their_kv_and_have_it_computed_again(tiny: None) -> None:
    expected = make_engine()
    wanted = forked(expected, 4)
    expected.generate(wanted, 40)
    engine = make_engine(memory=Resident(90 * KIB / 8))
    branches = forked(engine, 4)
    batch = engine.running_batch()
    batch.add(branches, Step(40))
    over = list[Branch]()
    while len(batch):
        over += batch.step()
    assert over == branches  # the oldest ends first
    assert [b.tokens for b in branches] == [b.tokens for b in wanted]
    assert branches[0].usage.recomputed_tokens > 0
    assert engine.memory.device.peak_bytes <= 90 * 128
    assert_nothing_left(engine, branches)


@pytest.mark.slow
@pytest.mark.parametrize("passes", some_quick([0, 5, 11, 23, 47, 60], [11, 47]))
def test_a_batch_breaks_off_while_some_wait_without_their_kv(tiny: None, passes: int) -> None:
    """What they go on from is computed again, and never read in the tail that they had."""
    expected = make_engine()
    wanted = forked(expected, 4)
    expected.generate(wanted, 40)
    engine = make_engine(memory=Resident(90 * KIB / 8))
    branches = forked(engine, 4)
    batch = engine.running_batch()
    batch.add(branches, Step(40))
    for _ in range(passes):
        batch.step()
    batch.close()
    assert_whole(engine, branches)
    left = [branch for branch in branches if len(branch.generated) < 40]
    engine.generate(left, [40 - len(branch.generated) for branch in left])
    for branch, other in zip(branches, wanted, strict=True):
        assert branch.tokens == other.tokens
        assert branch.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert_nothing_left(engine, branches)


@pytest.mark.slow
@pytest.mark.parametrize("length", [30, 40, 50])
def test_the_passes_of_another_model_have_waiting_rows_let_go_of_their_kv(
    tiny: None, length: int
) -> None:
    """Each in its own tree, under one budget."""
    expected = make_engine()
    wanted = forked(expected, 4)
    expected.generate(wanted, 20)
    engine = make_engine(memory=Resident(90 * KIB / 8))
    other = make_engine(memory=Resident(90 * KIB / 8))
    other.residency.join(engine.residency)
    other.take_turns_with(engine)
    branches = forked(engine, 4)
    batch = engine.running_batch()
    batch.add(branches, Step(20))
    for _ in range(12):
        batch.step()
    root = other.root(list(range(1, length)))
    other.generate([root], 4, sampling=GREEDY)
    twin = expected.root(root.tokens[: root.prompt_length])
    expected.generate([twin], 4, sampling=GREEDY)
    assert root.tokens == twin.tokens
    while len(batch):  # where the other's idle KV stands in the way
        batch.step()
    assert [b.tokens for b in branches] == [b.tokens for b in wanted]
    other.generate([root], 4, sampling=GREEDY)
    expected.generate([twin], 4, sampling=GREEDY)
    assert root.tokens == twin.tokens
    engine.release(branches)
    other.release([root])
    assert engine.memory.device.used_bytes == 0
    assert not engine.memory.live and not other.memory.live


def test_only_a_branch_that_does_not_fit_alone_is_refused(tiny: None) -> None:
    engine = make_engine(memory=Resident(30 * KIB / 8))
    branches = forked(engine, 4)
    engine.generate(branches, 20)
    assert [len(branch.generated) for branch in branches] == [20] * 4
    with pytest.raises(OutOfMemory, match="a budget of"):
        engine.generate(branches[2:], 20)
    assert all(20 < len(branch.generated) < 40 for branch in branches[2:3])
    assert branches[2].step_reasons == ["length", "interrupted"]
    engine.release(branches[:2])
    engine.generate(branches[3:], 5)  # the others' KV makes room
    assert len(branches[3].generated) == 25
    assert_nothing_left(engine, branches[2:])


def test_the_kv_of_524_tokens_of_best_of_16_with_a_limit_of_4000() -> None:
    lengths = [3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 58, 60]
    assert sum(lengths) == 524
    engine = make_engine(context=5000, gate=EndsAt(lengths))
    branches = forked(engine, 16)
    engine.generate(branches, 4000)
    assert [len(branch.generated) for branch in branches] == lengths
    device = engine.memory.device
    written_bytes = engine.memory.bytes_of(3 + 524)
    assert device.used_bytes <= written_bytes and device.peak_bytes <= 1.3 * written_bytes
    assert_nothing_left(engine, branches)


def test_64_branches_begin_whatever_their_limit() -> None:
    """Of which all together would need more than any machine has."""
    engine = make_engine(context=2**40)
    branches = forked(engine, 64)
    batch = engine.running_batch()
    batch.add(branches, Step(2**34))
    for _ in range(3):
        batch.step()
    assert [len(branch.generated) for branch in branches] == [3] * 64
    assert engine.memory.device.peak_bytes < 64 * 2 * running_tails.FIRST_TOKENS * 128
    batch.close()
    assert_nothing_left(engine, branches)


@pytest.mark.few
@pytest.mark.parametrize("failing", [3, 8, 13])
@pytest.mark.parametrize("case", ["llama", "mamba2"])
def test_a_pass_that_fails_leaves_what_was_written(case: str, failing: int, tiny: None) -> None:
    recurrent = case == "mamba2"
    model = plain(case) if recurrent else build(case)
    engine = Engine(copy.deepcopy(model), Letters())
    branches = forked(engine, 3)
    forward = engine.runner.forward
    engine.runner.forward = fail_at(engine, failing)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="device lost"):
        engine.generate(branches, 20, sampling=GREEDY)
    engine.runner.forward = forward  # type: ignore[method-assign]
    assert_whole(engine, branches)
    engine.generate(branches, [20 - len(b.generated) for b in branches], sampling=GREEDY)
    for branch in branches:
        assert_like_plain(model, branch)
        assert len(branch.generated) == 20
    assert_nothing_left(engine, branches)


# ---------------------------------------------------------------- other passes


CONTINUATIONS = [[[3, 4], [5]]] * 4


def test_branches_that_do_not_fit_together_are_rated_in_parts(tiny: None) -> None:
    roomy = make_engine()
    wanted = grown(roomy)
    engine = make_engine(memory=Resident(75 * KIB / 8))
    branches = grown(engine)
    assert [b.tokens for b in branches] == [b.tokens for b in wanted]
    found = engine.score(branches, CONTINUATIONS).result()
    expected = roomy.score(wanted, CONTINUATIONS).result()
    for one, other in zip(found, expected, strict=True):
        assert one == [pytest.approx(row) for row in other]
    for branch, other in zip(branches, wanted, strict=True):
        assert branch.usage.verifier_tokens == other.usage.verifier_tokens
    assert engine.memory.device.peak_bytes <= 75 * 128
    assert_nothing_left(engine, branches)


def test_a_prompt_finds_the_room_of_those_that_decode(tiny: None) -> None:
    expected = make_engine(context=256)
    wanted = forked(expected, 3)
    expected.generate(wanted, 30)
    engine = make_engine(context=256, memory=Resident(120 * KIB / 8))
    branches = forked(engine, 3)
    batch = engine.running_batch()
    batch.add(branches, Step(30))
    for _ in range(24):
        batch.step()
    root = engine.root(prompt(9, 60))
    batch.finish()
    assert [b.tokens for b in branches] == [b.tokens for b in wanted]
    assert engine.memory.device.peak_bytes <= 120 * 128
    with pytest.raises(OutOfMemory, match="a budget of"):
        engine.root(prompt(8, 119 + 60))
    assert_nothing_left(engine, [*branches, root])


def grown_under(engine: Engine) -> tuple[list[list[int]], list[Branch]]:
    """Three branches each of two problems, which a gate may end."""
    roots = engine.roots([prompt(1, 12), prompt(2, 9)]).result()
    branches = [child for root in roots for child in engine.fork(root, 3)]
    engine.release(roots)
    engine.generate(branches, 20)
    return [b.tokens for b in branches], branches


def test_problems_that_a_gate_compares_decode_in_turn_where_they_do_not_fit_together(
    tiny: None,
) -> None:
    gate = DecodeGate(theta=0.0, r_gap=0.02, min_tokens=8)
    expected, _ = grown_under(make_engine(gate=gate))
    assert len({len(tokens) for tokens in expected}) > 1
    engine = make_engine(gate=gate, memory=Resident(110 * KIB / 8))
    found, branches = grown_under(engine)
    assert found == expected
    assert engine.memory.device.peak_bytes <= 110 * 128
    with pytest.raises(OutOfMemory, match="a budget of"):
        grown_under(make_engine(gate=gate, memory=Resident(34 * KIB / 8)))
    assert_nothing_left(engine, branches)


@pytest.mark.slow
@pytest.mark.parametrize(
    "exit",
    [EarlyExit(l_min=1, theta=1e9, eps=1e9), EarlyExit("ranking", l_min=1, patience=1)],
)
def test_ratings_that_branches_leave_early_are_made_in_parts(exit: EarlyExit, tiny: None) -> None:
    roomy, engine = make_engine(), make_engine(memory=Resident(75 * KIB / 8))
    wanted, branches = grown(roomy), grown(engine)
    singles = [[[3], [4], [5]]] * 4
    report, other = ExitReport(), ExitReport()
    expected = roomy.score(wanted, singles, exit=exit, report=report).result()
    found = engine.score(branches, singles, exit=exit, report=other).result()
    for one, two in zip(found, expected, strict=True):
        assert [s for (s,) in one] == pytest.approx([s for (s,) in two])
    assert (other.depths, other.rows) == (report.depths, report.rows)
    assert engine.memory.device.peak_bytes <= 75 * 128
    assert_nothing_left(engine, branches)


@pytest.mark.slow
def test_branches_that_do_not_fit_together_are_given_texts_in_parts(tiny: None) -> None:
    texts = [prompt(5 + i, 9 + i) for i in range(4)]
    roomy = make_engine(context=256)
    engine = make_engine(context=256, memory=Resident(80 * KIB / 8))
    wanted, branches = grown(roomy), grown(engine)
    for one, of in ((roomy, wanted), (engine, branches)):
        one.extend(of, texts).result()
        one.generate(of, 6, sampling=GREEDY)
    assert [b.tokens for b in branches] == [b.tokens for b in wanted]
    assert [b.usage.prompt_tokens for b in branches] == [b.usage.prompt_tokens for b in wanted]
    before = [b.tokens[:] for b in branches]
    with pytest.raises(OutOfMemory, match="a budget of"):
        engine.extend(branches[:2], [prompt(6, 3), prompt(7, 60)]).result()
    assert [b.tokens for b in branches] == before
    assert_whole(engine, branches)
    assert engine.memory.device.peak_bytes <= 80 * 128
    assert_nothing_left(engine, branches)


def test_prompts_that_do_not_fit_together_are_computed_in_parts() -> None:
    prompts = [prompt(i, 30) for i in range(4)]
    roomy, engine = make_engine(), make_engine(memory=Resident(70 * KIB / 8))
    wanted, roots = roomy.roots(prompts).result(), engine.roots(prompts).result()
    assert_whole(engine, roots)
    for one, other in zip(
        engine.score(roots, CONTINUATIONS).result(),
        roomy.score(wanted, CONTINUATIONS).result(),
        strict=True,
    ):
        assert one == [pytest.approx(row) for row in other]
    assert_nothing_left(engine, roots)
