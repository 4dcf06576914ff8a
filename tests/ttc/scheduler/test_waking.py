"""Branches whose KV was let go of have it again before they decode, whoever decodes, waits or comes
back beside them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import FEW, build, prompt
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.recurrent import plain
from tests.helpers.tiers import some_quick
from tests.helpers.tokenizers import Letters
from ttc import BlockCache, DecodeGate, Engine, Resident, Step
from ttc.branch import Branch

RECURRENT = ("jamba", "mamba2", "qwen3_next")
ORDERS = ("rsbcm", "lru")


def model_of(family: str) -> Any:
    return copy.deepcopy(plain(family)) if family in RECURRENT else build(family)


def together(engine: Engine) -> list[Branch]:
    """Two branches of each of six problems, which decode in one batch: those of some join while
    others decode, all with less KV than the cache lets them keep. One problem is cancelled, one
    forks while it waits."""
    roots = engine.roots([prompt(seed, 9 + 2 * seed) for seed in range(6)], seeds=range(6)).result()
    problems = [engine.fork(root, 2) for root in roots]
    engine.release(roots)
    for branches in problems:
        engine.generate(branches, 5, sampling=GREEDY)
    batch = engine.running_batch()
    batch.add(problems[0], Step(9), GREEDY)
    batch.step()
    for branches in problems[1:]:
        batch.add(branches, Step(7), GREEDY)
    forks = engine.fork(problems[4][0], 2)
    batch.step()
    engine.release(problems.pop(2))
    engine.extend(forks, [[3], [4, 5]]).result()
    batch.add(forks, Step(4), GREEDY)
    while len(batch):
        batch.step()
    for branches in reversed(problems):
        batch.add(branches, Step(3), GREEDY)
        batch.step()
    while len(batch):
        batch.step()
    return [branch for branches in (*problems, forks) for branch in branches]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("family", some_quick([*FEW, *RECURRENT], ["llama"]))
def test_evicted_branches_of_several_problems_decode_as_plain_ones(family: str, order: str) -> None:
    model = model_of(family)
    cache = BlockCache(3, block_tokens=4, order=order)
    engine = Engine(model, Letters(), cache=cache, prefill_tokens=16)
    branches = together(engine)
    assert engine.cache is not None and engine.cache.evictions > 20
    assert branches[0].usage.recomputed_tokens > 0
    assert_nothing_left(engine, branches)
    with engine.lent():
        for branch in branches:
            assert_like_plain(model, branch)


@pytest.mark.few
@pytest.mark.parametrize("steps", range(1, 8))
def test_a_call_has_the_room_of_one_that_was_begun_before(steps: int) -> None:
    words = [[[65], [66]]]
    engine = Engine(build("llama"), Letters(), prefill_tokens=16)
    prompts = [prompt(seed, 40) for seed in range(3)]
    expected = engine.score(engine.roots(prompts).result(), words * 3).result()

    budget = 60 * engine.memory.bytes_per_token / 2**30  # one of the branches
    engine = Engine(build("llama"), Letters(), prefill_tokens=16, memory=Resident(budget))
    branches = engine.roots(prompts).result()
    call = engine.score(branches[:2], words * 2)
    for _ in range(steps):
        call.step()
    found = engine.score(branches[2:], words).result()
    assert torch.allclose(torch.tensor([*call.result(), *found]), torch.tensor(expected), atol=1e-4)
    engine.release(branches)
    assert_nothing_left(engine, [])


def test_rows_that_share_what_they_let_go_of_decode_together_again() -> None:
    """A gate never parts them, so that there is no smaller number to try."""

    def written(engine: Engine) -> list[list[int]]:
        branches = engine.fork(engine.root(prompt(1, 60)), 4)
        for _ in range(2):
            engine.generate(branches, 5)
            engine.model_changed()
        return [branch.tokens for branch in branches]

    free = make_engine(context=128)
    expected = written(free)
    memory = Resident(1.05 * free.memory.device.peak_bytes / 2**30)
    assert written(make_engine(context=128, memory=memory, gate=DecodeGate(theta=2))) == expected
