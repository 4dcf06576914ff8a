"""Models whose indexers choose the tokens that layers attend to: exact up to where all are chosen,
refused beyond."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from experiments.standins import small_models
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import prompt
from tests.helpers.tiers import slow
from tests.helpers.tokenizers import Letters
from ttc import ContextExceeded, Engine, UnsupportedModel
from ttc.model.extra_arguments import ExtraArguments, all_chosen

CHOICES: dict[str, tuple[dict[str, int], int]] = {
    # what limits the choice, and the tokens up to which all are chosen
    "deepseek_v32": ({"index_topk": 24}, 24),
    "glm_moe_dsa": ({"index_topk": 24}, 24),
    "minimax_m3_vl_text: sparse": ({"block_size": 8, "topk_blocks": 3}, 24),
    "qwen4_exp_text": ({"token_budget": 16, "compress_ratio": 8, "block_topk": 2}, 23),
}


@cache
def plain(case: str) -> Any:
    return small_models.build(case)


def with_few_chosen(case: str) -> Any:
    model = copy.deepcopy(plain(case))
    for module in model.modules():
        if type(module).__name__.endswith("Indexer"):
            vars(module).update(CHOICES[case][0])
    return model


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, None), slow((torch.float64, 1e-6))])
@pytest.mark.parametrize("case", ["deepseek_v32", "minimax_m3_vl_text: sparse"])
def test_tree_equals_plain_transformers(case: str, dtype: torch.dtype, bound: float | None) -> None:
    model = copy.deepcopy(plain(case)).to(dtype)
    model.set_experts_implementation("eager")  # the grouped products have no float64
    for branch in grow(Engine(copy.deepcopy(model), Letters(), prefill_tokens=5)):
        assert_like_plain(model, branch, bound)


@pytest.mark.slow
@pytest.mark.parametrize("case", CHOICES)
def test_the_context_ends_where_indexers_leave_tokens_out(case: str) -> None:
    model, longest = with_few_chosen(case), CHOICES[case][1]
    engine = Engine(copy.deepcopy(model), Letters(), prefill_tokens=7)
    assert all_chosen(model) == engine.limits.context_length == longest
    with pytest.raises(ContextExceeded, match=f"{longest + 1} tokens.* attend to a choice"):
        engine.root(prompt(1, longest + 1))
    root = engine.root(prompt(1, longest - 4))
    branches = engine.fork(root, 2)
    engine.extend(branches[:1], [prompt(2, 2)]).result()
    engine.generate(branches, 30, sampling=GREEDY)
    assert [len(branch.tokens) for branch in branches] == [longest, longest]
    for branch in branches:
        assert_like_plain(model, branch)
    engine.limits.context_length = 200
    beyond = engine.root(prompt(1, longest + 30))
    engine.generate([beyond], 1, sampling=GREEDY)
    with pytest.raises(AssertionError):
        assert_like_plain(model, beyond)


def test_an_indexer_of_a_kind_that_is_not_known_is_refused() -> None:
    model = copy.deepcopy(plain("deepseek_v32"))
    for layer in model.model.layers:
        del layer.self_attn.indexer.index_topk
    with pytest.raises(UnsupportedModel, match="does not know up to how many"):
        Engine(model, Letters())


@torch.no_grad()
def test_the_models_own_indexers_run_outside_the_engine() -> None:
    model = with_few_chosen("deepseek_v32")
    ids = torch.tensor([prompt(1, 60)])
    engine = Engine(copy.deepcopy(model), Letters())
    with engine.lent() as lent:
        assert torch.equal(lent(ids).logits, model(ids).logits)


def test_a_model_without_indexers_is_given_nothing() -> None:
    extras = ExtraArguments(plain("minimax_m3_vl_text"))
    with extras.running() as arguments:
        assert not extras and arguments == {}
    assert all_chosen(plain("minimax_m3_vl_text")) is None
