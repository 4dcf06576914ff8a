"""Gemma 4: its last layers attend to keys and values of earlier ones, and each takes embeddings of
its own."""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import pytest

from experiments.standins import small_models
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.ownership import assert_nothing_left, assert_whole
from tests.helpers.tiers import slow
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Capture, Engine, Headwise, Layerwise, Paged

CASE = "gemma4_text: shared KV"


@cache
def plain() -> Any:
    return small_models.build(CASE)


def engine_of(**options: Any) -> Engine:
    return Engine(copy.deepcopy(plain()), Letters(), **options)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("policy", "tokens"),
    [
        (Layerwise, 64),
        (Paged, 32),
        slow((BeamGroups, 80)),
        slow((Headwise, 64)),
        slow((partial(Capture, act_share=0.5), 64)),
    ],
    ids=lambda x: str(x),
)
def test_a_tree_over_any_policy_equals_plain_transformers(policy: Any, tokens: int) -> None:
    bytes_per_token = engine_of().memory.bytes_per_token
    engine = engine_of(
        memory=policy(tokens * bytes_per_token / 2**30, block_tokens=8), prefill_tokens=7
    )
    branches = grow(engine)
    assert engine.memory.link.to_device_bytes.total() > 0  # some KV had to move
    for branch in branches:
        assert_like_plain(plain(), branch)
    assert_whole(engine, branches)
    assert_nothing_left(engine, branches)
