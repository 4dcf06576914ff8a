"""A search that runs dry under a policy moves what it moves in earnest, to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from search import DVTS, REBASE, BeamSearch, BestOfN, Search, solve
from tests.helpers.models import deep
from tests.helpers.offloading import KIB
from tests.helpers.recurrent import engine_of as recurrent_engine
from tests.helpers.scripted import Scores
from tests.helpers.tiers import slow, some_quick
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, BlockCache, Capture, Engine, Headwise, Layerwise, Paged
from ttc.branch import Branch
from ttc.calibration.dry_run import BranchRecorder, Moved, dry_run
from ttc.residency.base import Residency

STEPS: dict[str, Any] = {"step_tokens": 9, "max_steps": 3, "delimiter": ","}
SEARCHES: dict[str, Search] = {
    "best_of_n": BestOfN(n=6, max_tokens=24),
    "beam_search": BeamSearch(beam_size=2, beam_width=3, **STEPS),
    "lookahead": BeamSearch(beam_size=2, beam_width=2, lookahead=1, **STEPS),
    "dvts": DVTS(subtrees=2, beam_width=3, **STEPS),
    "rebase": REBASE(n=6, **STEPS),
}
POLICIES: dict[str, Residency] = {
    "layerwise": Layerwise(40 * KIB, block_tokens=16),
    "beam_groups": BeamGroups(58 * KIB, block_tokens=16, prefetch=True),
    "beam_groups, private": BeamGroups(58 * KIB, block_tokens=16, shared=False),
    "paged": Paged(24 * KIB, block_tokens=16, watermark=0.5),
    "headwise": Headwise(40 * KIB, block_tokens=16),
    "capture": Capture(30 * KIB, block_tokens=16, act_share=0.5),
}
CASES = [
    (search, policy, BlockCache(4, block_tokens=8) if (n + m) % 2 else None)
    for n, search in enumerate(SEARCHES)
    for m, policy in enumerate(POLICIES)
    if search == "beam_search" or (n + m) % 3 == 0
]
"""Each policy under beam search and one or two more; both meet a cache, and none."""
QUICK = [case for case in CASES if case[0] == "beam_search" and case[1] != "layerwise"]


def vowels(branch: Branch) -> float:
    return sum(branch.text.count(letter) for letter in "aeiou") / (1 + len(branch.text))


@pytest.mark.parametrize(("search", "policy", "cache"), some_quick(CASES, QUICK))
def test_a_dry_run_says_what_crosses_the_link(
    search: str, policy: str, cache: BlockCache | None
) -> None:
    def run(engine: Engine) -> None:
        solve(SEARCHES[search], problem="how many", engine=engine, verifier=Scores(vowels))

    def engine_of(memory: Residency | None = None) -> Engine:
        model = deep(layers=3, heads=2, context=256)
        return Engine(model, Letters(), prefill_tokens=32, memory=memory, cache=cache)

    plain = engine_of()
    with BranchRecorder(plain) as recorder:
        run(plain)
    engine = engine_of(POLICIES[policy])
    run(engine)
    found = dry_run(POLICIES[policy], run, plain, recorder.script)
    assert found == Moved.of(engine)
    assert found.to_host.total() > 0
    once = search == "best_of_n" and "groups" in policy  # a group that is done is not read again
    assert found.to_device.total() > 0 or once


@pytest.mark.parametrize("policy", [slow(Layerwise), BeamGroups, slow(Paged), slow(Headwise)])
def test_recurrent_states_run_dry_too(policy: Any) -> None:
    sizes = recurrent_engine("lfm2: convolutions").memory
    budget_gib = (4 * sizes.states.nbytes + 60 * sizes.bytes_per_token) / 2**30

    def run(engine: Engine) -> None:
        branches = engine.fork(engine.root([5 + n for n in range(30)]), 5)
        for _ in range(3):
            engine.generate(branches, 4)
            engine.release(branches[2:])
            branches = [child for branch in branches[:2] for child in engine.fork(branch, 2)]

    engine = recurrent_engine("lfm2: convolutions", memory=policy(budget_gib, block_tokens=8))
    with BranchRecorder(engine) as recorder:
        run(engine)
    found = dry_run(policy(budget_gib, block_tokens=8), run, engine, recorder.script)
    assert found == Moved.of(engine)
    assert found.to_device["states"] > 0
