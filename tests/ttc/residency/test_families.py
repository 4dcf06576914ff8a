"""Families beside those of `FAMILIES` under every policy: a prompt and tokens as `transformers`
computes them, or a refusal by name."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from experiments.standins import small_models
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain
from tests.helpers.tiers import some_quick
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Capture, Engine, Headwise, Paged, UnsupportedModel
from ttc.errors import TTCError

TWICE = ("diffllama", "longcat_flash", "hrm_text")
"""Families with modules that attend several times in a pass."""
POLICIES: dict[str, Any] = {
    "beam_groups": BeamGroups(block_tokens=8),
    "paged": Paged(block_tokens=8),
    "headwise": Headwise(block_tokens=8),
    "capture, half ACT": Capture(act_share=0.5, block_tokens=8),
}


@pytest.mark.filterwarnings("ignore:memory=capture")
@pytest.mark.parametrize("case", some_quick(small_models.cases(), TWICE[:1]))
def test_every_family_of_transformers_decodes_under_every_policy_or_is_refused(case: str) -> None:
    """A prompt and two tokens of two branches. What is refused without a policy is so with any."""
    try:
        model = small_models.build(case)
    except small_models.CannotBuild as reason:
        pytest.skip(f"it cannot be built: {reason}"[:120])
    try:
        plainest = Engine(copy.deepcopy(model), Letters())
    except TTCError:
        with pytest.raises(TTCError):
            Engine(model, Letters(), memory=Paged(block_tokens=8))
        return

    @cache
    def logits(*tokens: int) -> Any:
        return model(torch.tensor([tokens]), use_cache=False)

    for policy in POLICIES.values():
        try:
            engine = Engine(plainest.model, Letters(), memory=policy, runner=plainest.runner)
        except UnsupportedModel as refused:
            assert type(model).__name__ in str(refused) or "memory=" in str(refused)
            continue
        root = engine.root(small_models.tokens(1, 19))
        branches = engine.fork(root, 2)
        engine.generate(branches, 2, sampling=GREEDY)
        with engine.lent():
            for branch in branches:
                assert_like_plain(lambda ids, **_: logits(*ids[0].tolist()), branch)
        engine.release([*branches, root])
        assert engine.kv_bytes() == 0
