"""Placed models give what plain transformers does: all families, recurrent and unusual layers,
beside policies, eviction, scores."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from experiments.standins import small_models, small_trees
from tests.helpers import placements
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import FAMILIES, FEW, prompt
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.placements import deeper
from tests.helpers.tiers import some_quick
from tests.helpers.tokenizers import Letters
from ttc import Engine, Headwise, Split, Streamed
from ttc.approximate.early_exit import EarlyExit
from ttc.placement.base import Placement

KIB = 1 / 2**20
PLACEMENTS = {"split": Split(k=3), "streamed": Streamed()}
CROSSES = {"split": "activations", "streamed": "weights"}
PLACED = pytest.mark.parametrize("placement", PLACEMENTS)
RECURRENT = ["qwen3_5_text", "jamba", "lfm2: convolutions", "mamba2", "falcon_h1"]
MORE = [
    "deepseek_v32",
    "gemma4_text: shared KV",
    "longcat_flash",
    "minimax",
    "mllama",
    "nemotron_h",
    "zamba",
]
"""Indexers, KV of another layer, two layers in one, layers that don't run or keep nothing, and
weights in common."""
UNUSUAL = [
    "dbrx",
    "diffllama",
    "gemma3n_text: shared KV",
    "gemma4",
    "granitemoe",
    "minicpm3",
    "stablelm",
]
"""Experts and tables of their own, two calls of attention in a layer, KV of another layer, low-rank
KV, no keyword arguments for attention."""


IN_DOUBLE = ["zamba"]
"""In single precision its rounding comes close to what is allowed, on some processors beyond it."""


@cache
def plain(case: str) -> Any:
    model = deeper(case) if case in FAMILIES else small_models.build(case)
    return model.double() if case in IN_DOUBLE else model


def placed(case: str, placement: str, **options: Any) -> Engine:
    return placements.placed(plain(case), PLACEMENTS[placement], **options)


@pytest.mark.few
@PLACED
@pytest.mark.parametrize("case", some_quick([*FAMILIES, *RECURRENT, *UNUSUAL], [*FEW, "jamba"]))
def test_a_tree_over_placed_layers_equals_plain_transformers(case: str, placement: str) -> None:
    engine = placed(case, placement)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain(case), branch)
    assert engine.memory.link.to_device_bytes[CROSSES[placement]] > 0
    assert_nothing_left(engine, branches)


@pytest.mark.few(1)
@PLACED
@pytest.mark.parametrize("case", some_quick(MORE, ["gemma4_text: shared KV"]))
def test_all_that_can_be_served_can_be_placed(case: str, placement: str) -> None:
    engine = placed(case, placement)
    branches = small_trees.grow(engine)
    for logits_of in small_trees.references(engine).values():
        worst, allowed = small_trees.difference(plain(case), branches, logits_of)
        assert worst <= allowed
    assert engine.memory.link.to_device_bytes[CROSSES[placement]] > 0
    assert_nothing_left(engine, branches)


@pytest.mark.few
@pytest.mark.parametrize(
    ("case", "on_host"),
    [("lfm2: convolutions", 1), ("diffllama", 4), ("qwen3_5_text", 0), ("longcat_flash", 4)],
)
def test_kv_lies_with_the_layers_that_keep_some(case: str, on_host: int) -> None:
    assert placed(case, "split").memory.fixed_layers == on_host  # of the first two layers


def test_states_of_layers_on_the_host_stay_there() -> None:
    whole = Engine(copy.deepcopy(plain("mamba2")), Letters()).memory.states.nbytes
    engine = placed("mamba2", "split", memory=Headwise())
    memory, states = engine.memory, engine.memory.states
    assert states.fixed_bytes > 0 < states.nbytes and states.fixed_bytes + states.nbytes == whole
    root = engine.root(prompt(1, 5))
    branches = engine.fork(root, 2)
    assert (memory.fixed.used_bytes, memory.host.used_bytes) == (states.fixed_bytes, states.nbytes)
    engine.generate(branches, 3, sampling=GREEDY)
    assert memory.link.to_device_bytes["states"] == states.nbytes
    assert memory.link.to_host_bytes["states"] == 3 * states.nbytes
    for branch in branches:
        assert_like_plain(plain("mamba2"), branch)
    assert_nothing_left(engine, [root, *branches])


@pytest.mark.slow
@PLACED
@pytest.mark.parametrize(
    "case",
    ["llama", "qwen3_5_text", "gemma4_text: shared KV"],
)
def test_scores_and_exits_are_those_of_the_whole_model(case: str, placement: str) -> None:
    asked, given = [[[3], [4]], [[5], [6]]], [prompt(3, 3), prompt(4, 2)]
    whole = Engine(copy.deepcopy(plain(case)), Letters(), prefill_tokens=5)
    for exit in (
        None,
        EarlyExit(rule="entropy", l_min=2, theta=1e9, eps=1e9),
        EarlyExit(rule="ranking", l_min=1),
    ):
        found = []
        for engine in (whole, placed(case, placement)):
            branches = engine.fork(engine.root(prompt(1, 12)), 2)
            found.append(engine.score(branches, asked, given=given, exit=exit).result())
        for ours, expected in zip(found[1], found[0], strict=True):
            for one, two in zip(ours, expected, strict=True):
                assert one == pytest.approx(two, abs=1e-4)


@pytest.mark.few
@pytest.mark.parametrize("placement", [Split(k=3), Streamed()], ids=str)
def test_scores_in_bfloat16_stay_near_those_of_the_whole_model(placement: Placement) -> None:
    model = deeper("llama").to(torch.bfloat16)
    whole, parted = Engine(copy.deepcopy(model), Letters()), placements.placed(model, placement)
    expected, found = (
        torch.tensor(e.score([e.root(prompt(1, 12))], [[[3], [4]]]).result())
        for e in (whole, parted)
    )
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.02)
