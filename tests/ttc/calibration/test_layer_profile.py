"""Profiles against plain transformers cut off at each layer, with and without their final norm."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from tests.helpers.exits import (
    CANDIDATES,
    CORE,
    LAYERS,
    build,
    entropies,
    lenses,
    problems,
    untouched,
)
from tests.helpers.tiers import slow, some_quick
from tests.helpers.tokenizers import Letters
from ttc import Engine
from ttc.branch import Branch
from ttc.calibration.layer_profile import BranchProfile, layer_profile, look_layers, weight_count
from ttc.model.packed_linear import can_pack, pack_linears


def profiles(
    engine: Engine, branches: list[Branch], given: list[list[int]], positive: int = 1
) -> list[BranchProfile]:
    return layer_profile(engine, branches, given, [CANDIDATES] * len(branches), positive)


@torch.no_grad()
def raw_entropies(plain: Any, tokens: list[int]) -> list[float]:
    """The paper's lens: the head on what each layer returns."""
    (layers,) = [
        m for m in plain.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == LAYERS
    ]
    states: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_hook(
            lambda m, a, out: states.append(out[0] if isinstance(out, tuple) else out)
        )
        for layer in layers
    ]
    plain(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return entropies(
        [plain.get_output_embeddings()(s[0, -1]).double().log_softmax(-1) for s in states]
    )


@pytest.mark.parametrize("positive", [1, slow(2)])
@pytest.mark.parametrize("family", some_quick(CORE, ["llama", "gpt2"]))
def test_each_layer_as_the_last_one(family: str, positive: int) -> None:
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters())
    branches, given = problems(engine)
    found = profiles(engine, branches, given, positive)
    for branch, more, lens, profile in zip(
        branches, given, lenses(plain, branches, given), found, strict=True
    ):
        assert profile.entropy == pytest.approx(entropies(lens), abs=1e-4)
        p = [float(x[CANDIDATES].softmax(-1)[:positive].sum()) for x in lens]
        assert profile.p == pytest.approx(p, abs=1e-5)
        assert profile.rows == 1 + len(more)
        if family == "opt":  # its head takes narrower states
            assert all(map(math.isnan, profile.raw_entropy)) and len(profile.raw_entropy) == LAYERS
        else:
            assert profile.raw_entropy == pytest.approx(
                raw_entropies(plain, branch.tokens + more), abs=1e-4
            )


def test_what_a_profile_leaves_and_counts() -> None:
    whole, engine = (
        Engine(build("llama"), Letters()),
        Engine(build("llama"), Letters(), prefill_tokens=16),
    )
    expected = profiles(whole, *problems(whole))
    branches, given = problems(engine)
    before, spent = engine.kv_bytes(), [branches[i].usage.verifier_tokens for i in (0, 3)]
    order = [3, 0, 4, 2, 1]
    # in several passes
    found = profiles(engine, [branches[i] for i in order], [given[i] for i in order])
    for i, profile in zip(order, found, strict=True):
        assert profile.entropy == pytest.approx(expected[i].entropy, abs=1e-9)
        assert profile.raw_entropy == pytest.approx(expected[i].raw_entropy, abs=1e-9)
        assert profile.p == pytest.approx(expected[i].p, abs=1e-9)
    assert engine.kv_bytes() == before and untouched(engine)
    for first, rows, tokens in ((0, [0, 1, 2], spent[0]), (3, [3, 4], spent[1])):
        usage = branches[first].usage
        assert usage.verifier_tokens - tokens == sum(found[order.index(i)].rows for i in rows)
        assert (usage.lens_rows, usage.exit_layer_rows_saved) == (LAYERS * len(rows), 0)
    assert layer_profile(engine, [], [], [], 1) == []


def test_what_a_look_costs_in_layers() -> None:
    engine = Engine(build("llama"), Letters())
    attention, mlp, norms = 32 * (32 + 16 + 16 + 32), 3 * 32 * 48, 2 * 32
    head = 128 * 32
    assert weight_count(engine.model.get_output_embeddings()) == head
    assert look_layers(engine, 10) == pytest.approx(head / (10 * (attention + mlp + norms)))
    small = build("llama", torch.bfloat16)
    if can_pack(small):
        expected = weight_count(small)
        pack_linears(small)
        tied = small.get_input_embeddings().weight.numel()  # the head's weight stands in both
        assert weight_count(small) == expected + (tied if small.config.tie_word_embeddings else 0)
