"""Prefill that stops between two passes: whatever others do there, all of it comes to the same."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import prompt, small
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.recurrent import engine_of, plain
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import Letters
from ttc import BlockCache, Engine, OutOfMemory, Paged, Resident
from ttc.branch import Branch
from ttc.step import Step

LONG = prompt(3, 40)
OTHER = [*LONG[:15], *prompt(9, 20)]
"""It shares the first tokens of `LONG`."""
PLAIN = small(2, 128)


def stepwise(**options: Any) -> Engine:
    return Engine(small(2, 128), Letters(), prefill_tokens=8, **options)


def written(engine: Engine, branch: Branch) -> list[int]:
    engine.generate([branch], 6, sampling=GREEDY)
    return branch.generated


def test_each_step_is_one_pass() -> None:
    engine = stepwise()
    forward, rows = engine.runner.forward, list[int]()
    engine.runner.forward = lambda tokens, *rest: (
        rows.append(len(tokens)),
        forward(tokens, *rest),
    )[1]  # type: ignore[method-assign]
    prefill = engine.roots([LONG], seeds=[0])
    steps = 0
    while not prefill.step():
        steps += 1
        assert len(rows) == steps
    assert rows == [8, 8, 8, 8, 7]  # the last token is fed when the branch goes on
    assert prefill.branches[0].usage.prompt_tokens == 39
    assert_nothing_left(engine, prefill.branches)


def decodes(engine: Engine, held: list[Branch]) -> None:
    batch = engine.running_batch()
    batch.add(engine.fork(held[0], 2), Step(3), GREEDY)
    children = list(batch.branches)
    held += children
    while len(batch):
        batch.step()


def computes_another_prompt(engine: Engine, held: list[Branch]) -> None:
    held.append(engine.root(OTHER))


def splits_the_prompt_that_it_stands_on(engine: Engine, held: list[Branch]) -> None:
    held.append(engine.root([*prompt(3, 10), *prompt(5, 9)]))


def extends(engine: Engine, held: list[Branch]) -> None:
    engine.extend([held[0]], [prompt(4, 11)]).result()


def scores(engine: Engine, held: list[Branch]) -> None:
    engine.score([held[0]], [[[1, 2, 3], [1, 2, 4]]]).result()


BETWEEN: list[Callable[[Engine, list[Branch]], None]] = [
    decodes,
    computes_another_prompt,
    splits_the_prompt_that_it_stands_on,
    extends,
    scores,
]


OPTIONS: dict[str, dict[str, Any]] = {
    "resident": {},
    "paged": {"memory": Paged(block_tokens=4)},
    "cache": {"cache": BlockCache(4, 4)},
}


@settings(max_examples=examples(12))
@given(
    st.lists(st.lists(st.sampled_from(BETWEEN), max_size=2), max_size=6),
    st.sampled_from(sorted(OPTIONS)),
)
def test_what_others_do_between_its_passes_changes_nothing(
    between: list[list[Any]], how: str
) -> None:
    engine = stepwise(**OPTIONS[how])
    held = [engine.root(prompt(3, 20))]
    prefill = engine.roots([LONG, OTHER, prompt(7, 30)], seeds=[0, 1, 2])
    for calls in between:
        for call in calls:
            call(engine, held)
        prefill.step()
    while not prefill.step():
        pass
    for branch in prefill.branches:
        assert written(engine, branch)
        assert_like_plain(PLAIN, branch)
    if how == "cache":
        engine.release([*held, *prefill.branches])
        assert engine.kv_bytes() == 0
    else:
        assert_nothing_left(engine, [*held, *prefill.branches])


@pytest.mark.parametrize("case", ["qwen3_5_text", "mamba2"])
def test_recurrent_states_are_those_of_the_passes_alone(case: str) -> None:
    engine = engine_of(case, prefill_tokens=8)
    held = [engine.root(prompt(3, 20))]
    prefill = engine.roots([LONG, OTHER], seeds=[0, 1])
    for act in (decodes, computes_another_prompt, extends, scores):
        prefill.step()
        act(engine, held)
    while not prefill.step():
        pass
    for branch in prefill.branches:
        assert written(engine, branch)
        assert_like_plain(plain(case), branch)
    assert_nothing_left(engine, [*held, *prefill.branches])


def test_a_branch_that_is_released_leaves_at_once_and_the_others_go_on() -> None:
    engine = stepwise()
    prefill = engine.roots([LONG, prompt(8, 40)], seeds=[0, 1])
    prefill.step()
    left, stays = prefill.branches
    engine.release([left])
    before = left.usage.prompt_tokens
    while not prefill.step():
        pass
    assert left.usage.prompt_tokens == before < 39
    assert engine.kv_bytes() == 39 * engine.memory.bytes_per_token
    assert written(engine, stays)
    assert_like_plain(PLAIN, stays)
    assert_nothing_left(engine, [stays])


@pytest.mark.parametrize("steps", range(7))
def test_what_is_broken_off_leaves_nothing(steps: int) -> None:
    engine = stepwise()
    prefill = engine.roots([LONG, OTHER], seeds=[0, 1])
    for _ in range(steps):
        prefill.step()
    prefill.close()
    engine.release(prefill.branches)
    assert engine.kv_bytes() == 0 and not engine.tree.segments() and not engine.live
    root = engine.root(prompt(1, 5))
    extension = engine.extend([root], [LONG])
    for _ in range(steps):
        extension.step()
    extension.close()
    assert root.tokens == prompt(1, 5) or extension.done
    if not extension.done:
        with pytest.raises(RuntimeError, match="closed before its last pass"):
            extension.step()
    assert_nothing_left(engine, [root])


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("begin", ["roots", "extend"])
def test_where_the_model_changes_between_two_passes_all_is_computed_by_the_new_one(
    begin: str, told: bool
) -> None:
    engine = stepwise()
    root = engine.root(prompt(1, 9))
    prefill = engine.roots([LONG], seeds=[0]) if begin == "roots" else engine.extend([root], [LONG])
    prefill.step()
    prefill.step()
    changed = small(2, 128)
    for model in (engine.model, changed):
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.mul_(3)
    if told:
        engine.model_changed()
    else:
        engine.release([engine.root([5])])  # each request looks at the model
    while not prefill.step():
        pass
    (branch,) = prefill.branches
    assert written(engine, branch)
    assert_like_plain(changed, branch)
    engine.release([root, branch])
    assert engine.kv_bytes() == 0 and not engine.tree.segments()


def test_where_room_is_tight_others_wait_for_a_prefill_that_has_begun() -> None:
    engine = stepwise()
    budget = 2 * 60 * engine.memory.bytes_per_token / 2**30
    engine = stepwise(memory=Paged(block_tokens=4, budget_gib=budget))
    assert not engine.residency.roomy
    prefill = engine.roots([LONG], seeds=[0])
    prefill.step()
    other = engine.root(OTHER)
    assert prefill.done and other.usage.shared_tokens == 12  # whole pages
    assert prefill.step()


def test_an_error_of_a_pass_reaches_whoever_began_it() -> None:
    engine = stepwise(memory=Resident(budget_gib=1e-9))
    prefill = engine.roots([LONG], seeds=[0])
    for _ in range(2):
        with pytest.raises(OutOfMemory):
            prefill.step()
    assert not engine.live and not engine.runtime.under_way


def test_a_call_that_nobody_makes_says_so() -> None:
    engine = make_engine()
    root = engine.root([5])
    with pytest.warns(RuntimeWarning, match=r"never made; end it with \.result\(\)"):
        engine.extend([root], [[6, 7]])
        gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.extend([root], [[6, 7]]).result()
        engine.extend([root], [[8]]).close()
        gc.collect()
    assert root.tokens == [5, 6, 7]
    assert_nothing_left(engine, [root])
