"""Weights that come to the device in every pass: a link that is late, a pass that breaks off, and a
transfer that fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import prompt
from tests.helpers.placements import LAYERS, deeper, placed
from ttc import BeamGroups, Streamed
from ttc.approximate.early_exit import EarlyExit

KIB = 1 / 2**20


def test_a_late_link_changes_nothing_but_time_and_kv_crosses_it_too() -> None:
    plain = deeper("qwen3")
    memory = BeamGroups(LAYERS * 8 * KIB, block_tokens=8)
    engine = placed(plain, Streamed(link_gbps=0.02), memory=memory)
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    link = engine.memory.link
    assert link.simulated and link.exposed_s > 0
    moved = link.to_device_bytes
    assert moved["weights"] > 0
    assert moved.total() > moved["weights"] + moved["activations"] + moved["positions"], "KV moves"


def test_a_pass_that_breaks_off_leaves_the_next_one_right() -> None:
    plain = deeper("llama")
    # so slow that weights for the next layers are still under way
    engine = placed(plain, Streamed(link_gbps=0.002))
    branches = engine.roots([prompt(1, 6), prompt(2, 6)]).result()
    exit = EarlyExit(rule="entropy", l_min=1, theta=1e9, eps=1e9)
    assert len(engine.score(branches, [[[3], [4]]] * 2, exit=exit).result()) == 2
    engine.generate(branches, 3, sampling=GREEDY)
    for branch in branches:
        assert_like_plain(plain, branch)


@pytest.mark.slow
def test_a_transfer_that_fails_is_raised_and_the_next_pass_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = deeper("llama")
    engine = placed(plain, Streamed())
    branch = engine.root(prompt(1, 12))
    link, fetch = engine.memory.link, engine.memory.link.fetch

    def fails(copies: Any, cause: str, **options: Any) -> Any:
        if cause == "weights":
            copies = [*copies[:-1], (copies[-1][0][:1], copies[-1][1])]  # of different sizes
        return fetch(copies, cause, **options)

    monkeypatch.setattr(link, "fetch", fails)
    with pytest.raises(RuntimeError, match=r"doesn.t match"):
        engine.generate([branch], 3, sampling=GREEDY)
    monkeypatch.undo()
    engine.generate([branch], 3, sampling=GREEDY)
    assert_like_plain(plain, branch)
