"""Recurrent states under every memory policy: where they lie, what moves, and the same tokens as
plain transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import settings
from transformers import JambaForCausalLM

from experiments.standins import small_models
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.links import failing_at
from tests.helpers.models import prompt
from tests.helpers.ownership import Ownership, assert_nothing_left, assert_whole
from tests.helpers.recurrent import engine_of, plain
from tests.helpers.tiers import examples, slow
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, BlockCache, Capture, Engine, Headwise, Layerwise, OutOfMemory, Paged
from ttc.branch import Branch
from ttc.step import Step

POLICIES: dict[str, Callable[..., Any]] = {
    "layerwise": Layerwise,
    "beam_groups": partial(BeamGroups, prefetch=True),
    "paged": Paged,
    "headwise": Headwise,
    "capture": partial(Capture, act_share=0.0),
}


@cache
def sizes(case: str) -> tuple[int, int]:
    """Bytes of a state, and of a token's KV."""
    memory = engine_of(case).memory
    return memory.states.nbytes, memory.bytes_per_token


def limited(case: str, policy: str, states: float, tokens: int = 0, **options: Any) -> Engine:
    """An engine whose device has room for so many states and KV of so many tokens."""
    state, token = sizes(case)
    memory = POLICIES[policy]((states * state + tokens * token) / 2**30, block_tokens=8, **options)
    return engine_of(case, memory=memory)


def moved(engine: Engine) -> tuple[float, float]:
    """How many states have come to the device and gone to the host."""
    link, size = engine.memory.link, engine.memory.states.nbytes
    return link.to_device_bytes["states"] / size, link.to_host_bytes["states"] / size


def places(branches: list[Branch]) -> list[tuple[bool, bool]]:
    """Whether each branch's state is on the device, and on the host."""
    states = [branch.leaf.state for branch in branches]
    assert None not in states
    return [
        (state.device[0] is not None, state.host[0] is not None)
        for state in states
        if state is not None
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", ["qwen3_5_text", slow("mamba2")])
def test_a_budget_that_has_states_move_changes_nothing(case: str, policy: str) -> None:
    engine = limited(case, policy, 2, 48, link_gbps=0.1)
    branches = grow(engine)
    assert min(moved(engine)) >= 5
    for branch in branches:
        assert_like_plain(plain(case), branch)
    assert_whole(engine, branches)
    assert_nothing_left(engine, branches)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_one_state_is_room_enough_for_a_model_without_attention(policy: str) -> None:
    engine = limited("mamba2", policy, 1)
    branches = grow(engine)
    assert engine.memory.device.peak_bytes == engine.memory.states.nbytes
    assert not engine.memory.link.to_device_bytes.keys() - {"states"}
    for branch in branches:
        assert_like_plain(plain("mamba2"), branch)
    assert_nothing_left(engine, branches)


@pytest.mark.parametrize("policy", POLICIES)
def test_less_than_one_state_is_refused_with_the_bytes_that_would_do(policy: str) -> None:
    state, _ = sizes("mamba2")
    engine = limited("mamba2", policy, 1 - 1 / state)
    with pytest.raises(OutOfMemory, match=f"a budget of {state:,} bytes"):
        engine.root(prompt(1, 9))
    assert engine.kv_bytes() == 0


def test_a_state_on_the_host_crosses_once_for_all_branches_that_go_on_from_it() -> None:
    engine = limited("mamba2", "headwise", 8)
    root = engine.root(prompt(1, 21))
    assert moved(engine) == (0, 1) and places([root]) == [(False, True)]
    branches = engine.fork(root, 3)
    engine.generate(branches, 4, sampling=GREEDY)
    assert moved(engine) == (1, 4) and places(branches) == [(False, True)] * 3
    assert (engine.memory.device.used_bytes, engine.memory.host.used_bytes) == (
        0,
        4 * engine.memory.states.nbytes,
    )
    engine.release(branches[:1])
    assert engine.kv_bytes() == 3 * engine.memory.states.nbytes
    assert_nothing_left(engine, [root, *branches[1:]])


def test_the_state_of_a_long_prompt_stays_on_the_device_from_pass_to_pass() -> None:
    state, token = sizes("jamba")
    memory = Headwise((2 * state + 40 * token) / 2**30, block_tokens=8)
    engine = engine_of("jamba", memory=memory, prefill_tokens=5)
    root = engine.root(prompt(1, 21))
    assert moved(engine) == (0, 1) and places([root]) == [(False, True)]
    assert_nothing_left(engine, [root])


def test_what_fits_stays_on_the_device() -> None:
    for policy in ("layerwise", "beam_groups", "paged"):
        engine = limited("jamba", policy, 12, 400)
        branches = engine.fork(engine.root(prompt(1, 21)), 4)
        engine.generate(branches, 4, sampling=GREEDY)
        assert moved(engine) == (0, 0)
        assert engine.memory.device.used_bytes == engine.kv_bytes() > 0


@pytest.mark.slow
def test_groups_are_as_large_as_states_and_kv_allow() -> None:
    for case, states, tokens, expected in (
        ("mamba2", 4, 0, [3, 3]),
        ("jamba", 6, 20 + 60, [6]),  # 20 tokens that all share, and 10 of each branch
        ("jamba", 6, 20 + 59, [3, 3]),
        ("jamba", 3, 20 + 30, [3, 3]),
        ("jamba", 1, 20 + 10, [1] * 6),
    ):
        engine = limited(case, "beam_groups", states, tokens)
        branches = engine.fork(engine.root(prompt(1, 21)), 6)
        found = engine.residency.groups([branch.leaf.path() for branch in branches], 10)
        assert [len(group) for group in found] == expected, case


def test_the_next_groups_states_come_while_a_group_decodes() -> None:
    engine = limited("mamba2", "beam_groups", 4)
    branches = engine.fork(engine.root(prompt(1, 12)), 5)
    engine.generate(branches, 2, sampling=GREEDY)  # each at a state of its own from here on
    coming, own = [], engine.runner.forward

    def watched(*args: Any, **kwargs: Any) -> Any:
        states = [branch.leaf.state for branch in branches]
        coming.append([state is not None and state.device[0] is not None for state in states])
        return own(*args, **kwargs)

    engine.runner.forward = watched  # type: ignore[method-assign]
    batch = engine.running_batch()
    batch.add(branches, Step(3), GREEDY)
    batch.step()
    waiting = [row.branch for group in batch.admission.groups for row in group]
    # two decode
    assert len(waiting) == 3 and sum(coming[-1][branches.index(branch)] for branch in waiting) == 2
    while len(batch):
        batch.step()
    for branch in branches:
        assert_like_plain(plain("mamba2"), branch)


def test_each_branch_of_a_round_has_room_for_its_state() -> None:
    engine = limited("mamba2", "paged", 3)
    branches = engine.fork(engine.root(prompt(1, 21)), 6)
    found = engine.residency.groups([branch.leaf.path() for branch in branches], 10)
    assert [len(group) for group in found] == [3, 3]


def test_the_states_of_a_group_leave_at_once_where_another_one_follows() -> None:
    engine = limited("mamba2", "beam_groups", 6)
    branches = engine.fork(engine.root(prompt(1, 12)), 8)
    batch = engine.running_batch()
    batch.add(branches, Step(3), GREEDY)
    ended = batch.step()
    assert len(ended) == 4 and places(ended) == [(False, True)] * 4


def test_states_leave_before_keys_and_values_and_the_oldest_first() -> None:
    engine = limited("jamba", "paged", 3.5, 100)
    roots = [engine.root(prompt(seed, 17)) for seed in (1, 2, 3)]
    assert places(roots) == [(True, False)] * 3
    residency, state = engine.residency, engine.memory.states.nbytes
    free = int(engine.memory.device.free_bytes)
    assert residency.make_room(free + 1) and places(roots) == [
        (False, True),
        (True, False),
        (True, False),
    ]
    assert residency.make_room(free + 2 * state + 1)
    assert places(roots) == [(False, True)] * 3
    kept = [segment.storage for segment in engine.tree.segments()]
    assert all(kv.is_resident for kv in kept)
    assert residency.make_room(free + 3 * state + 1)
    assert [kv.is_resident for kv in kept].count(False) == 1
    engine.generate(roots, 3, sampling=GREEDY)
    for root in roots:
        assert_like_plain(plain("jamba"), root)
    assert_nothing_left(engine, roots)


@pytest.mark.few
@pytest.mark.parametrize("policy", ["beam_groups", "paged", "headwise", "layerwise"])
def test_branches_whose_states_the_host_has_no_room_for_decode_in_turn(policy: str) -> None:
    state, _ = sizes("mamba2")
    engine = limited("mamba2", policy, 2, host_budget_gib=3 * state / 2**30)
    branches = engine.fork(engine.root(prompt(1, 21)), 6)
    engine.generate(branches, 4, sampling=GREEDY)
    for branch in branches:
        assert_like_plain(plain("mamba2"), branch)
    assert_nothing_left(engine, branches)


def test_states_of_a_model_that_rests_leave_for_those_of_another_one() -> None:
    resting, working = limited("mamba2", "paged", 2), limited("mamba2", "paged", 2)
    working.residency.join(resting.residency)
    roots = [resting.root(prompt(1, 9))]
    assert places(roots) == [(True, False)]
    other = working.root(prompt(2, 9))
    working.generate(working.fork(other, 2), 3, sampling=GREEDY)
    assert places(roots) == [(False, True)]
    device = resting.memory.device
    assert device is working.memory.device and device.peak_bytes == 2 * resting.memory.states.nbytes
    resting.generate(roots, 3, sampling=GREEDY)
    assert_like_plain(plain("mamba2"), roots[0])


@pytest.mark.few
@pytest.mark.parametrize("failing", [1, 2, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_copy_that_fails_stops_the_step_and_leaks_nothing(policy: str, failing: int) -> None:
    engine = limited("mamba2", policy, 2)
    root = engine.root(prompt(1, 9))
    branches = engine.fork(root, 4)
    link = engine.memory.link
    for queue in (link.to_device, link.to_host):
        queue.copy = failing_at(failing, queue.copy)  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the link is down"):
        for _ in range(4):
            engine.generate(branches, 2)
    for queue in (link.to_device, link.to_host):
        del queue.copy
    assert_nothing_left(engine, [root, *branches])


@cache
def multi_head() -> Any:
    """A Jamba whose layers of attention have as many heads of keys as of queries, so that ACT
    blocks are smaller."""
    torch.manual_seed(0)
    config = small_models.config_of("jamba", small_models.WINDOW)
    config.num_key_value_heads = config.num_attention_heads
    model = JambaForCausalLM(config).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(weight.numel()))
    model.generation_config.eos_token_id = None
    return model


def test_activations_are_kept_beside_states() -> None:
    memory = Capture(1e-4, block_tokens=8, act_share=0.5, mini_batch_tokens=32)
    engine = Engine(copy.deepcopy(multi_head()), Letters(), memory=memory)
    branches = grow(engine)
    assert isinstance(engine.residency, Capture)
    near, far, kv = engine.residency.counts()
    assert near + far > 0 < kv and moved(engine)[0] > 0
    for branch in branches:
        assert_like_plain(multi_head(), branch)
    assert_nothing_left(engine, branches)


class StatesInGroups(Ownership):
    def __init__(self) -> None:
        super().__init__()
        state, token = sizes("jamba")
        memory = BeamGroups((3 * state + 120 * token) / 2**30, block_tokens=8)
        self.engine = engine_of(
            "jamba", memory=memory, cache=BlockCache(capacity_blocks=16, block_tokens=4)
        )


StatesInGroups.TestCase.settings = settings(max_examples=examples(8), stateful_step_count=10)
TestStatesInGroups = StatesInGroups.TestCase
