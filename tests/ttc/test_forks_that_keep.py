"""`Engine.fork` with `keep`: a child goes on from any token, whatever KV and states there are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import prompt
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.recurrent import engine_of, plain
from tests.helpers.tiers import examples, some_quick
from ttc import BeamGroups, BlockCache, Capture, Headwise, Layerwise, Paged, Resident

POLICIES: dict[str, Any] = {
    "resident": Resident(),
    "layerwise": Layerwise(block_tokens=4),
    "beam_groups": BeamGroups(block_tokens=4),
    "paged": Paged(block_tokens=4),
    "headwise": Headwise(block_tokens=4),
    "capture": Capture(block_tokens=4),
}
CASES = [("jamba", policy) for policy in POLICIES]
CASES += [("mamba2", "resident"), ("mamba2", "beam_groups"), ("qwen3_next", "headwise")]


@pytest.mark.filterwarnings("ignore:memory=capture")
@pytest.mark.parametrize(("family", "policy"), some_quick(CASES, [CASES[0], CASES[3]]))
@settings(max_examples=examples(4))
@given(
    keeps=st.lists(st.integers(1, 22), min_size=1, max_size=6),
    first=st.integers(1, 9),
    cache=st.sampled_from([None, BlockCache(2, block_tokens=4)]),
)
def test_a_fork_goes_on_from_any_token(
    family: str, policy: str, keeps: list[int], first: int, cache: BlockCache | None
) -> None:
    engine = engine_of(family, memory=POLICIES[policy], cache=cache, prefill_tokens=6)
    root = engine.root(prompt(1, 13))
    engine.generate([root], first, sampling=GREEDY)
    engine.generate([root], 9 - first + 1, sampling=GREEDY)
    children = [child for keep in keeps for child in engine.fork(root, 2, keep=keep)]
    engine.generate(children, 3, sampling=GREEDY)
    for child, keep in zip(children[::2], keeps, strict=True):
        assert child.tokens[:keep] == root.tokens[:keep]
        assert_like_plain(plain(family), child)
    assert_nothing_left(engine, [root, *children])
