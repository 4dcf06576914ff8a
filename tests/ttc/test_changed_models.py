"""KV of a model that has changed since is never used: the model as it is now computes it again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import prompt, small
from tests.helpers.ownership import assert_whole
from tests.helpers.tokenizers import Letters
from ttc import BlockCache, EarlyExit, Engine, Paged, Resident, Sharing, Step
from ttc.task import Task


def heavier(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(3)


def lighter(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.div_(3)


def sharper(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 4


def heavier_through_data(model: Any) -> None:
    model.model.layers[0].self_attn.v_proj.weight.data.mul_(3)


CHANGES = [heavier, sharper, heavier_through_data]


def both(change: Callable[[Any], None], **options: Any) -> tuple[Engine, Any]:
    """An engine with a live branch, both changed after it was made, and a plain model like it."""
    plain = small(2, 128)
    engine = Engine(copy.deepcopy(plain), Letters(), **options)
    engine.kept = engine.root(prompt(1, 20))  # type: ignore[attr-defined]
    engine.generate([engine.kept], 4, sampling=GREEDY)  # type: ignore[attr-defined]
    for model in (engine.model, plain):
        change(model)
    return engine, plain


@pytest.mark.parametrize("runner", ["modules", "fused"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_new_root_shares_nothing_with_the_model_of_before(
    change: Callable[[Any], None], runner: Any
) -> None:
    engine, plain = both(change, runner=runner)
    root = engine.root(prompt(1, 20))
    assert root.usage.shared_tokens == 0
    engine.generate([root], 6, sampling=GREEDY)
    assert_like_plain(plain, root)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"runner": "fused"},
        {"sharing": Sharing("none")},
        {"cache": BlockCache(4, 4)},
        {"memory": Paged(1, block_tokens=8)},
    ],
    ids=["plain", "fused", "none shared", "evicting", "paged"],
)
def test_a_branch_goes_on_as_the_model_that_is_there_now(
    change: Callable[[Any], None], options: Any
) -> None:
    engine, plain = both(change, **options)
    (old,) = engine.fork(engine.kept, 1)  # type: ignore[attr-defined]
    before = len(old.tokens)
    engine.generate([old], 5, sampling=GREEDY)
    with torch.no_grad():
        expected = plain(torch.tensor([old.tokens]), use_cache=False).logits[0].log_softmax(-1)
    for place in range(before, len(old.tokens)):
        assert old.tokens[place] == int(expected[place - 1].argmax())
        logprob = old.logprobs[place - old.prompt_length]
        assert abs(logprob - float(expected[place - 1, old.tokens[place]])) < 1e-3
    if "sharing" not in options:
        assert old.usage.recomputed_tokens >= before - 1
    engine.release([engine.kept])  # type: ignore[attr-defined]
    assert_whole(engine, [old])


def test_scores_are_those_of_the_model_that_is_there_now() -> None:
    engine, plain = both(heavier)
    branch, ending = engine.kept, prompt(9, 3)  # type: ignore[attr-defined]
    ((scores,),) = engine.score([branch], [[ending]]).result()
    logits = plain(torch.tensor([branch.tokens + ending]), use_cache=False).logits[0]
    rows = logits.log_softmax(-1)[len(branch.tokens) - 1 : -1]
    expected = rows.gather(1, torch.tensor(ending)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(scores), expected, atol=1e-4)


def test_a_call_ends_whose_model_changes_between_all_of_its_passes() -> None:
    engine = make_engine(context=128, prefill_tokens=4)
    call, steps = engine.roots([prompt(1, 30)]), 0
    while not call.step():
        engine.model_changed()
        steps += 1
        assert steps < 10
    (root,) = call.result()
    assert root.leaf.end == 29
    assert_whole(engine, [root])


@pytest.mark.parametrize("verifies", [False, True])
def test_a_call_that_is_made_again_costs_what_it_costs_once(verifies: bool) -> None:
    def spent(changes: bool) -> tuple[int, ...]:
        engine = make_engine(context=128, prefill_tokens=4)
        root = engine.root(prompt(1, 9))
        if verifies:
            call: Task[Any] = engine.score([root], [[prompt(2, 6), prompt(3, 6)]])
        else:
            call = engine.extend([root], [prompt(4, 20)])
        while not call.step():
            if changes:
                engine.model_changed()
        usage = root.usage
        return usage.prompt_tokens, usage.shared_tokens, usage.budgeted_tokens

    assert spent(changes=True) == spent(changes=False)


@pytest.mark.parametrize("memory", [Resident, partial(Paged, 1, block_tokens=8)])
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("changes", [1, 2])
def test_a_call_that_has_begun_is_of_the_model_that_is_there_when_it_goes_on(
    memory: Any, told: bool, changes: int
) -> None:
    """Others call between two of its passes, with the model of then. Where room is tight they do
    not finish it first, with theirs."""
    plain = small(2, 128)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=4, memory=memory())
    branch, ending = engine.root(prompt(1, 20)), prompt(9, 12)
    call = engine.score([branch], [[ending]])
    call.step()
    for number in range(changes):
        for model in (engine.model, plain):
            (heavier, lighter)[number](model)
        if told:
            engine.model_changed()
        if number == 0 or not told:
            engine.release([engine.root([5])])
    ((scores,),) = call.result()
    logits = plain(torch.tensor([branch.tokens + ending]), use_cache=False).logits[0]
    rows = logits.log_softmax(-1)[len(branch.tokens) - 1 : -1]
    expected = rows.gather(1, torch.tensor(ending)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(scores), expected, atol=1e-4)
    assert_whole(engine, [branch])


@pytest.mark.parametrize("kind", ["roots", "extend", "score", "exit"])
def test_a_branch_that_was_released_is_left_out_where_a_call_begins_again(kind: str) -> None:
    engine = make_engine(context=128, prefill_tokens=4)
    branches = engine.roots([prompt(1, 20), prompt(2, 20)]).result()
    calls: dict[str, Callable[[], Task[Any]]] = {
        "roots": lambda: engine.roots([prompt(3, 20), prompt(4, 20)]),
        "extend": lambda: engine.extend(branches, [prompt(3, 9), prompt(4, 9)]),
        "score": lambda: engine.score(branches, [[prompt(3, 9)], [prompt(4, 9)]]),
        "exit": lambda: engine.score(branches, [[[5], [6]]] * 2, exit=EarlyExit(l_min=1)),
    }
    call = calls[kind]()
    call.step()
    engine.release(call.branches[:1])
    engine.model_changed()
    result = call.result()
    left = call.branches[1]
    assert len(left.tokens) == 20 + 9 * (kind == "extend")
    lengths = {"score": [9], "exit": [1, 1]}.get(kind)
    assert lengths is None or [*map(len, result[1])] == lengths
    if kind == "roots":
        engine.release(branches)
    assert_whole(engine, [left])


def test_who_decodes_makes_way_for_a_call_that_begins_again() -> None:
    engine = make_engine(context=128, prefill_tokens=4, memory=Paged(1, block_tokens=8))
    branch, other = engine.roots([prompt(1, 20), prompt(2, 20)]).result()
    call, batch = engine.score([branch], [[prompt(9, 12)]]), engine.running_batch()
    call.step()
    engine.model_changed()
    call.step()  # it lets go of what it has
    batch.add([other], Step(8))
    batch.step()
    assert batch.at_work
    call.step()
    assert not batch.at_work and not call.done
    call.close()
    batch.finish()


def test_without_a_change_nothing_is_computed_again() -> None:
    engine = make_engine(context=128)
    root = engine.root(prompt(1, 20))
    branches = engine.fork(root, 2)
    engine.generate(branches, 4)
    with engine.lent() as model:
        model.generate(torch.tensor([prompt(1, 9)]), max_new_tokens=2)
    again = engine.root(prompt(1, 20))
    engine.generate(branches, 4)
    assert root.usage.recomputed_tokens == 0
    assert again.usage.shared_tokens == 19
