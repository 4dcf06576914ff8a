"""Models with linear attention, state spaces and convolutions against plain transformers: their
states in the tree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import settings
from transformers.models.mamba2 import modeling_mamba2

import ttc.recurrent.pass_states
import ttc.tree.tree
from experiments.standins import small_models
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import (
    assert_like_plain,
    assert_scores_like_plain,
    grow,
)
from tests.helpers.models import prompt
from tests.helpers.ownership import Ownership, assert_nothing_left, assert_whole
from tests.helpers.recurrent import engine_of, plain
from tests.helpers.tiers import examples, slow
from tests.helpers.tokenizers import Letters
from ttc import (
    BlockCache,
    Engine,
    OutOfMemory,
    Resident,
    Sharing,
    UnsupportedModel,
)
from ttc.step import Step

HYBRIDS = ["qwen3_5_text", "jamba", "lfm2: convolutions"]
CASES = [*HYBRIDS, "mamba2"]


@pytest.mark.few
@pytest.mark.parametrize("case", [*CASES, *map(slow, ("granitemoehybrid", "falcon_h1", "minimax"))])
def test_tree_equals_plain_transformers(case: str) -> None:
    engine = engine_of(case, prefill_tokens=5)
    assert engine.runner.recurrent is not None
    assert engine.runner.recurrent.by_token == (case == "jamba")  # its scan begins from zeros
    branches = grow(engine)
    assert_whole(engine, branches)
    for branch in branches:
        assert_like_plain(plain(case), branch)
    assert_nothing_left(engine, branches)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_plain_transformers(case: str) -> None:
    engine = engine_of(case, prefill_tokens=8)
    root = engine.root(prompt(1, 21))
    branches = engine.fork(root, 2)
    engine.extend(branches[:1], [prompt(2, 4)]).result()
    given, continuations = (
        [prompt(3, 3), []],
        [[prompt(4, 3), prompt(4, 3)[:1] + prompt(5, 5)], [prompt(6, 1)]],
    )
    scores = engine.score(branches, continuations, given=given).result()
    for branch, more, group, found in zip(branches, given, continuations, scores, strict=True):
        assert_scores_like_plain(plain(case), branch, more, group, found)
    assert_whole(engine, [root, *branches])


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_a_branch_that_is_told_something_comes_back_with_the_state_after_it(case: str) -> None:
    """Before another token of those that went on: it was not seen to be away."""
    engine = engine_of(case)
    branches = engine.fork(engine.root(prompt(1, 14)), 3)
    batch = engine.running_batch()
    batch.add(branches, Step(7), GREEDY, limits=[2, 7, 3])
    while len(batch):
        for branch in batch.step():
            if len(branch.step_ends) == 1:
                engine.extend([branch], [prompt(2, 3)]).result()
                batch.add([branch], Step(4), GREEDY)
    for branch in branches:
        assert_like_plain(plain(case), branch)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("case", ["jamba", "mamba2"])
def test_a_fork_costs_nothing_and_states_count(case: str) -> None:
    engine = engine_of(case)
    root, state_bytes = engine.root(prompt(1, 21)), engine.memory.states.nbytes
    shape = engine.memory.states.shape
    assert shape is not None and state_bytes == sum(t.nbytes for t in shape.zeros(1).values()) > 0
    held = 20 * engine.memory.bytes_per_token + state_bytes
    assert engine.kv_bytes() == held
    branches = engine.fork(root, 3)
    assert engine.kv_bytes() == held
    for _ in range(2):  # a branch of several steps holds one state
        engine.generate(branches, 2, sampling=GREEDY)
    grown = held + 3 * (4 * engine.memory.bytes_per_token + state_bytes)
    assert engine.kv_bytes() == grown
    engine.release(branches[:1])
    assert engine.kv_bytes() == grown - 4 * engine.memory.bytes_per_token - state_bytes
    assert_nothing_left(engine, [root, *branches[1:]])


def test_a_budget_without_room_for_one_state_more_is_refused_before_any_work() -> None:
    state_bytes = engine_of("mamba2").memory.states.nbytes
    engine = engine_of("mamba2", memory=Resident(budget_gib=2.5 * state_bytes / 2**30))
    branches = engine.fork(engine.root(prompt(1, 21)), 3)
    # one where it begins, one that changes, and one that is kept
    with pytest.raises(OutOfMemory, match=f"a budget of {3 * state_bytes:,} bytes"):
        engine.generate(branches, 2)
    assert [len(branch.generated) for branch in branches] == [0, 0, 0]


@pytest.mark.parametrize("call", [1, 3])
def test_a_pass_that_breaks_off_loses_states_and_no_tokens(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of("jamba")
    root = engine.root(prompt(1, 14))
    branches = engine.fork(root, 2)
    engine.generate(branches, 3, sampling=GREEDY)
    before = [branch.generated for branch in branches]
    recurrent = engine.runner.recurrent
    assert recurrent is not None
    last, calls = recurrent.modules[-1], []
    usual = last.forward()

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise RuntimeError("device lost")
        return usual(*args, **kwargs)

    with monkeypatch.context() as patch:  # the layers before it have changed their states already
        patch.setattr(last, "forward", lambda: failing)
        with pytest.raises(RuntimeError, match="device lost"):
            engine.generate(branches, 8, sampling=GREEDY)
    lost = call - 1  # tokens of the step before the call that fails
    for branch, tokens in zip(branches, before, strict=True):
        assert branch.generated[:3] == tokens and len(branch.generated) == 3 + lost
        assert branch.leaf.state is not None and branch.leaf.end == len(branch.tokens) - 1 - lost
    engine.generate(branches, 4, sampling=GREEDY)
    assert branches[0].usage.recomputed_tokens == 2 * lost
    assert_whole(engine, [root, *branches])
    for branch in branches:
        assert_like_plain(plain("jamba"), branch)


class RecurrentOwnership(Ownership):
    def __init__(self) -> None:
        super().__init__()
        self.engine = engine_of("jamba", cache=BlockCache(capacity_blocks=12, block_tokens=4))


RecurrentOwnership.TestCase.settings = settings(max_examples=examples(8), stateful_step_count=12)
TestOwnership = RecurrentOwnership.TestCase


# ---------------------------------------------------------------- what is shared


@pytest.mark.parametrize("case", ["qwen3_5_text", "mamba2"])
def test_prompts_of_one_call_share_up_to_the_token_where_they_part(case: str) -> None:
    engine, head = engine_of(case), prompt(1, 20)
    roots = engine.roots(
        [head + prompt(2, 9), head + prompt(3, 11), head + prompt(3, 11) + prompt(4, 8)]
    ).result()
    assert [root.usage.shared_tokens for root in roots] == [0, 20, 30]
    engine.generate(roots, 4, sampling=GREEDY)
    for root in roots:
        assert_like_plain(plain(case), root)
    assert_nothing_left(engine, roots)


def test_a_later_prompt_shares_up_to_a_state_that_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ttc.recurrent.pass_states, ttc.tree.tree):
        monkeypatch.setattr(module, "SNAPSHOT_TOKENS", 16)
    engine, head = engine_of("qwen3_5_text", prefill_tokens=11), prompt(1, 40)
    first = engine.root([*head, *prompt(2, 9)])
    engine.generate([first], 3, sampling=GREEDY)  # joins segments, but keeps regular states
    second = engine.root([*head, *prompt(3, 6)])
    assert second.usage.shared_tokens == 32
    engine.generate([second], 3, sampling=GREEDY)
    engine.extend([first], [prompt(4, 30)]).result()  # as a tool's answer
    engine.generate([first], 3, sampling=GREEDY)
    third = engine.root([*first.tokens[:75], *prompt(5, 6)])
    assert third.usage.shared_tokens == 64
    engine.generate([third], 3, sampling=GREEDY)
    for branch in (first, second, third):
        assert_like_plain(plain("qwen3_5_text"), branch)
    assert_nothing_left(engine, [first, second, third])


def test_similar_prompts_are_refused_by_name() -> None:
    engine = engine_of("jamba", sharing=Sharing("similar"))
    root = engine.root(prompt(1, 14))
    with pytest.raises(UnsupportedModel, match="JambaForCausalLM has recurrent layers"):
        engine.variants(root, [prompt(1, 10) + prompt(2, 4)]).result()
    assert_nothing_left(engine, [root])


# ---------------------------------------------------------------- the check at load


def test_modules_that_give_something_else_token_by_token_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_models.build("mamba2")
    ids = torch.tensor([prompt(1, 12)])
    before = model(ids).logits
    update = modeling_mamba2.mamba2_selective_state_update
    monkeypatch.setattr(
        modeling_mamba2,
        "mamba2_selective_state_update",
        lambda *args, **kw: update(*args, **kw) + 0.1,
    )
    with pytest.raises(UnsupportedModel, match="give something else when they go token by token"):
        Engine(model, Letters())
    assert torch.equal(model(ids).logits, before)
    monkeypatch.undo()
    Engine(model, Letters())


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("rwkv", "keeps a state of its own"),
        ("recurrent_gemma", "states that a layer keeps to itself"),
    ],
)
def test_states_elsewhere_than_in_transformers_cache_are_refused(case: str, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        engine_of(case)


def test_a_lent_model_runs_as_before() -> None:
    engine, ids = engine_of("jamba"), torch.tensor([prompt(1, 12)])
    root = engine.root(prompt(1, 12))
    engine.generate([root], 2, sampling=GREEDY)
    with engine.lent() as model, torch.no_grad():
        assert torch.equal(model(ids).logits, plain("jamba")(ids).logits)
