"""Passes that are launched before the last token is read change no result, whatever comes between
two tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from experiments.standins.pretended import Waits, pretended_devices
from tests.helpers.engines import GREEDY, forked, make_engine
from tests.helpers.models import prompt, small
from tests.helpers.offloading import KIB
from tests.helpers.ownership import assert_nothing_left, assert_whole
from tests.helpers.parts import installed
from tests.helpers.recurrent import engine_of
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import Letters
from ttc import (
    BeamGroups,
    Branch,
    DecodeGate,
    Engine,
    Paged,
    Resident,
    Sampling,
    UnsupportedModel,
)
from ttc.cuda.ahead import SHARE
from ttc.draws import queue_draw
from ttc.scheduler import rows, writing
from ttc.scheduler.batch import RunningBatch
from ttc.step import Step
from ttc.trace import Trace

ON_GPU = torch.cuda.is_available()
SAMPLINGS = [GREEDY, Sampling(), Sampling(0.7, top_k=9), Sampling(1.2, top_p=0.8, min_p=0.01)]
EOS = frozenset(range(110, 120))


def ahead_engine(run_ahead: bool = True, **options: Any) -> Engine:
    """Passes ahead are tried on a CPU, too, which computes them at once."""
    engine = make_engine(**options)
    engine.runtime.run_ahead = run_ahead
    return engine


def launched(batch: RunningBatch) -> int:
    assert batch.ahead is not None
    return batch.ahead.launched


def used(batch: RunningBatch) -> int:
    assert batch.ahead is not None
    return batch.ahead.used


# ---------------------------------------------------------------- in which order


def test_the_next_pass_is_launched_before_the_last_token_is_waited_for() -> None:
    device, _ = pretended_devices()
    passes = list[tuple[str, int]]()

    def texts(place: str) -> list[list[int]]:
        engine = Engine(copy.deepcopy(small(1)).to(place), Letters())
        forward = engine.runner.forward
        branches = forked(engine, 3)
        batch = engine.running_batch()
        batch.add(branches[:2], Step(9), Sampling(0.8, top_p=0.9))
        batch.add(branches[2:], Step(9), GREEDY)

        def watched(tokens: Any, *rest: Any) -> Tensor:
            where = str(tokens.device) if isinstance(tokens, Tensor) else "host"
            passes.append((where, waits.total))
            return forward(tokens, *rest)

        engine.runner.forward = watched  # type: ignore[method-assign]
        while len(batch):
            with Waits() as waits:
                batch.step()
            if place == device and len(passes) > 2:
                assert waits.total == 1
        return [branch.generated for branch in branches]

    found = texts(device)
    # the first token's pass, and the second one's in the same step; after the eighth token none is
    # launched but the ninth one's, which is the last
    assert [where for where, _ in passes] == ["host"] + [device] * 8
    assert [waited for _, waited in passes[2:]] == [0] * 7
    passes.clear()
    assert texts("cpu") == found
    assert [where for where, _ in passes] == ["host"] * 9


@pytest.mark.slow
def test_tokens_that_are_drawn_again_make_the_pass_ahead_one_that_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, _ = pretended_devices()

    def texts(place: str) -> tuple[list[list[int]], RunningBatch]:
        engine = Engine(copy.deepcopy(small(1)).to(place), Letters())
        branches = forked(engine, 3)
        batch = engine.running_batch()
        batch.add(branches, Step(12), Sampling(1.0, top_p=0.9))
        batch.finish()
        return [branch.generated for branch in branches], batch

    expected, _ = texts("cpu")
    monkeypatch.setattr(rows, "queue_draw", partial(queue_draw, sorted_tokens=2))
    found, batch = texts(device)
    assert found == expected
    assert 0 < launched(batch) < 11 and used(batch) < launched(batch)


# ---------------------------------------------------------------- with and without


@dataclass(frozen=True)
class Ask:
    """One request: its branches' limits, the token and the batch that it comes to, its options."""

    limits: tuple[int, ...]
    after: int = 0
    batch: int = 0
    sampling: Sampling = SAMPLINGS[1]
    stop: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    statistics: bool = False
    text: tuple[int, ...] = tuple(range(1, 25))


@dataclass
class Play:
    """What a schedule has come to, with or without passes ahead."""

    engine: Engine
    batches: list[RunningBatch]
    groups: list[list[Branch]] = field(default_factory=list)
    ended: list[list[int]] = field(default_factory=list)

    @property
    def branches(self) -> list[Branch]:
        return [branch for group in self.groups for branch in group]

    def outcome(self) -> Any:
        """All but figures."""
        usage = [vars(group[0].usage) for group in self.groups]
        ends = [(b.step_ends, b.step_reasons, b.finish_reason) for b in self.branches]
        return [branch.tokens for branch in self.branches], ends, usage, self.ended

    def figures(self) -> list[float]:
        return [x for branch in self.branches for column in branch.columns() for x in column]


def release(play: Play) -> None:
    going = [b for batch in play.batches for b in batch.branches]
    youngest = max(going, key=play.branches.index, default=None)
    if youngest is not None:
        play.engine.release([youngest])
        play.groups = [[b for b in group if b is not youngest] for group in play.groups]
        play.groups = [group for group in play.groups if group]


def score(play: Play) -> None:
    """A verifier looks at what has ended, while others decode."""
    going = {b for batch in play.batches for b in batch.branches}
    ended = [branch for branch in play.branches if branch not in going]
    play.engine.score(ended, [[[5, 6]]] * len(ended)).result()


def change(play: Play) -> None:
    with torch.no_grad():
        play.engine.model.lm_head.weight.mul_(-0.9)
    play.engine.model_changed()


EVENTS: dict[str, Callable[[Play], object]] = {
    "release": release,
    "change the model": change,
    "interrupt": lambda play: [batch.interrupt() for batch in play.batches],
    "close": lambda play: play.batches[0].close(),
    "score": score,
    "cut the tree": lambda play: play.engine.release([play.engine.root([*range(1, 19), 99, 98])]),
    "prefill": lambda play: play.engine.release([play.engine.root([50, 51, 52])]),
}


def play(
    asks: Sequence[Ask], events: Sequence[tuple[int, str]], run_ahead: bool, eos: bool
) -> Play:
    engine = ahead_engine(run_ahead)
    engine.limits.eos_ids = EOS if eos else frozenset()
    found = Play(engine, [engine.running_batch() for _ in range(2)])
    coming = list(enumerate(asks))
    token = 0
    while coming or any(map(len, found.batches)):
        for seed, ask in [pair for pair in coming if pair[1].after <= token]:
            root = engine.root(ask.text, seed=seed)
            branches = engine.fork(root, len(ask.limits))
            engine.release([root])
            found.groups.append(branches)
            step = Step(max(ask.limits), ask.stop, ask.end, ask.statistics)
            found.batches[ask.batch].add(branches, step, ask.sampling, ask.limits)
            coming.remove((seed, ask))
        for batch in found.batches:
            ended = batch.step()
            found.ended.append([found.branches.index(branch) for branch in ended])
        for name in [name for when, name in events if when == token]:
            EVENTS[name](found)
        token += 1
    return found


def compared(
    asks: Sequence[Ask], events: Sequence[tuple[int, str]] = (), eos: bool = False
) -> Play:
    """A schedule with passes ahead, which gives what it gives without."""
    without, found = (play(asks, events, run_ahead, eos) for run_ahead in (False, True))
    assert found.outcome() == without.outcome()
    # passes with other rows round otherwise
    assert found.figures() == pytest.approx(without.figures(), abs=1e-4, nan_ok=True)
    for one in (without, found):
        if not any(name == "change the model" for _, name in events):  # else KV is let go of
            assert_whole(one.engine, one.branches)
        one.engine.release(one.branches)
        assert one.engine.kv_bytes() == 0 and not one.engine.tree.segments()
    return found


def test_rows_that_end_at_stops_and_ends_leave_the_others_what_was_computed() -> None:
    ask = Ask((30,) * 8, stop=tuple("<&>"), end=tuple("defgh"), statistics=True)
    found = compared([ask], eos=True)
    reasons = {branch.step_reasons[-1] for branch in found.branches}
    assert reasons >= {"delimiter", "end", "eos"}
    lengths = {len(branch.generated) for branch in found.branches}
    assert len(lengths) > 3
    batch, _ = found.batches
    # all passes but the first
    assert used(batch) == max(lengths) - 1
    assert launched(batch) - used(batch) <= 1


def test_requests_that_are_drawn_differently_are_drawn_in_one_pass() -> None:
    asks = [
        Ask((12, 12), sampling=GREEDY, text=(1, 2, 3)),
        Ask((12, 12), statistics=True, text=(1, 2, 3, 4)),
        Ask((12,), sampling=SAMPLINGS[3], text=(1, 2)),
    ]
    found = compared(asks)
    assert used(found.batches[0]) == launched(found.batches[0]) == 11


@pytest.mark.few
@pytest.mark.parametrize(
    ("event", "dropped"),
    [
        ("release", 1),
        ("change the model", 1),
        ("interrupt", 1),
        ("close", 1),
        ("score", 0),
        ("cut the tree", 0),
        ("prefill", 0),
    ],
)
def test_what_comes_between_two_tokens_changes_no_result_and_drops_what_no_longer_fits(
    event: str, dropped: int
) -> None:
    asks = [Ask((20, 20, 20)), Ask((14,), after=4), Ask((12, 12), batch=1, text=(1, 2, 3, 4))]
    assert used(compared(asks, [(8, event)]).batches[0]) > 3
    found = play([Ask((5, 20, 20))], [(8, event)], run_ahead=True, eos=False)
    assert launched(found.batches[0]) - used(found.batches[0]) == dropped


def test_rows_that_join_have_the_pass_made_again() -> None:
    found = compared([Ask((12, 12)), Ask((8,), after=2)])
    batch, _ = found.batches
    assert launched(batch) - used(batch) == 1 and used(batch) > 7


def test_storages_that_are_full_have_others_follow_as_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "room_for", lambda left, written: min(left, 3))
    found = compared([Ask((20, 20, 20), stop=("z", "a", "b")), Ask((9,), after=3)])
    batch, _ = found.batches
    assert launched(batch) - used(batch) <= 1  # that of the rows that were joined
    assert 5 < used(batch) < 14  # none for a token that has no room


asks = st.builds(
    Ask,
    limits=st.lists(st.integers(1, 14), min_size=1, max_size=4).map(tuple),
    after=st.integers(0, 6),
    batch=st.integers(0, 1),
    sampling=st.sampled_from(SAMPLINGS),
    stop=st.lists(st.integers(40, 120).map(chr), max_size=8).map(tuple),
    end=st.lists(st.integers(40, 120).map(chr), max_size=3).map(tuple),
    statistics=st.booleans(),
    text=st.sampled_from([tuple(range(1, 25)), (1, 2), (1, 2, 7, 8), (4, 5, 6, 7)]),
)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    asked=st.lists(asks, min_size=1, max_size=4),
    events=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([*EVENTS])), max_size=3),
    eos=st.booleans(),
    room=st.integers(2, 12),
)
def test_schedules_come_to_the_same_with_passes_ahead(
    asked: Sequence[Ask], events: Sequence[tuple[int, str]], eos: bool, room: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "room_for", lambda left, written: min(left, room))
        compared(asked, events, eos)


# ---------------------------------------------------------------- where none is launched


def decoded(engine: Engine, limits: Sequence[int] = (9, 9, 9)) -> RunningBatch:
    batch = engine.running_batch()
    batch.add(forked(engine, len(limits)), Step(max(limits)), limits=limits)
    batch.finish()
    return batch


@pytest.mark.parametrize(
    "options",
    [
        {"gate": DecodeGate()},
        *({"speculation": lookup()} for lookup in installed("speculation", "prompt_lookup")),
        {"memory": Paged()},
        {"memory": BeamGroups(30 * KIB, block_tokens=8)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_gates_drafts_and_policies_that_move_kv_have_none(options: dict[str, Any]) -> None:
    assert ahead_engine(**options).running_batch().ahead is None
    assert ahead_engine(memory=Resident(30 * KIB)).running_batch().ahead is not None
    recurrent = engine_of("mamba")
    recurrent.runtime.run_ahead = True
    assert recurrent.running_batch().ahead is None


def test_processors_read_tokens_first() -> None:
    model = copy.deepcopy(small(2))
    model.generation_config.repetition_penalty = 1.3
    engine = Engine(model, Letters())
    engine.runtime.run_ahead = True
    assert launched(decoded(engine)) == 0


def test_hooks_and_traces_see_passes_in_their_order() -> None:
    engine = ahead_engine()
    hook = engine.model.lm_head.register_forward_hook(lambda *_: None)
    assert launched(decoded(engine)) == 0
    hook.remove()
    engine.trace = Trace()
    assert launched(decoded(engine)) == 0
    engine.trace = None
    assert launched(decoded(engine)) == 8


def test_none_is_launched_with_a_token_that_ends_a_row_by_its_limit() -> None:
    batch = decoded(ahead_engine(), limits=(4, 9, 9))
    assert launched(batch) == used(batch) == 7  # those of the tokens 2 to 4 and 6 to 9


def test_none_is_launched_while_others_wait_or_have_passes_left() -> None:
    engine = ahead_engine(prefill_tokens=4)
    batch = engine.running_batch(max_rows=2)
    first, second = forked(engine, 2), forked(engine, 2)
    batch.add(first, Step(20), limits=[8, 20])
    batch.add(second, Step(12))
    for _ in range(7):
        batch.step()
    assert launched(batch) == 0
    while len(batch) > 2:
        batch.step()
    batch.step()
    before = launched(batch)
    call = engine.roots([list(range(30, 50))], seeds=[0])
    assert not call.step()
    batch.step()
    assert launched(batch) == before
    while not call.step():
        pass
    batch.step()
    assert launched(batch) == before + 1


def test_passes_that_are_dropped_again_and_again_are_few() -> None:
    engine = ahead_engine()
    batch = engine.running_batch()
    batch.add(forked(engine, 1), Step(50))
    tokens = 0
    while tokens < 6 * SHARE:
        batch.step()
        tokens += 1
        batch.interrupt()
    assert used(batch) == 0
    assert 0 < launched(batch) <= 6 + 2


# ---------------------------------------------------------------- what fails


def test_a_pass_ahead_that_fails_is_made_again_when_it_is_its_turn() -> None:
    plain, engine = ahead_engine(False), ahead_engine()
    expected, branches = forked(plain, 2), forked(engine, 2)
    plain.generate(expected, 9)
    forward, kinds = engine.runner.forward, list[str]()

    def failing(tokens: Any, *rest: Any) -> Tensor:
        kinds.append("device" if isinstance(tokens, Tensor) else "host")
        if len(kinds) == 4:
            raise RuntimeError("out of memory")
        return forward(tokens, *rest)

    engine.runner.forward = failing  # type: ignore[method-assign]
    engine.generate(branches, 9)
    assert [branch.tokens for branch in branches] == [branch.tokens for branch in expected]
    assert kinds == ["host"] + ["device"] * 3 + ["host"] + ["device"] * 5
    assert_nothing_left(engine, branches)


def test_a_model_that_is_lent_is_not_decoded_by() -> None:
    engine = ahead_engine()
    branches = forked(engine, 2)
    batch = engine.running_batch()
    batch.add(branches, Step(9))
    batch.step()
    assert launched(batch) == 1
    with engine.lent(), pytest.raises(UnsupportedModel, match=r"engine\.lent"):
        batch.step()
    assert [len(branch.generated) for branch in branches] == [1, 1]
    assert_nothing_left(engine, branches)


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_on_a_gpu_texts_are_those_without_passes_ahead() -> None:
    def texts(run_ahead: bool) -> list[list[int]]:
        engine = Engine(copy.deepcopy(small(2, 256)).cuda(), Letters())
        engine.runtime.run_ahead = run_ahead
        branches = engine.fork(engine.root(prompt(1, 30)), 16)
        engine.generate(branches, 64, stop=tuple(map(chr, range(40, 43))), sampling=SAMPLINGS[1])
        return [branch.generated for branch in branches]

    assert texts(True) == texts(False)
