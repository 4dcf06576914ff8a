"""Early exits of models that are more than layers of attention in a row: recurrent layers, layers
that share KV."""

from __future__ import annotations

import copy
import math
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from experiments.standins import small_models
from tests.helpers.breaking import Breakable
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.exits import (
    ALWAYS,
    CANDIDATES,
    ask,
    cut_off,
    entropies,
    lenses,
    middle,
    paper_depth,
    problems,
    untouched,
)
from tests.helpers.models import prompt
from tests.helpers.ownership import assert_nothing_left, assert_whole
from tests.helpers.tiers import examples, some_quick
from tests.helpers.tokenizers import Letters
from ttc import Engine, Sharing, UnsupportedModel
from ttc.approximate.decode_gate import DecodeGate
from ttc.approximate.early_exit import EarlyExit
from ttc.attention.plan import Plan, Run
from ttc.decoder_layers import decoder_layers
from ttc.memory.storage import Places, Storage
from ttc.passes.new_tokens import one_pass
from ttc.passes.shrinking import Remaining, ShrinkingPass

GEMMA4 = "gemma4_text: shared KV"
CASES = ["qwen3_5_text", "jamba", "mamba2", GEMMA4]
MORE = ["gemma3n_text: shared KV", "hy_v4", "gemma4", "lfm2: convolutions", "falcon_h1", "zaya"]
MORE += ["longcat_flash"]
"""Several streams of states, before the rows and after them; other layers for images; convolutions;
attention and a state space in one layer; what a layer gives the next one beside its states; two
calls of attention in a layer."""


@cache
def plain(case: str) -> Any:
    return small_models.build(case)


def engine_of(case: str, **options: Any) -> Engine:
    return Engine(copy.deepcopy(plain(case)), Letters(), **options)


@torch.no_grad()
def by_hand(case: str, tokens: list[int]) -> list[Tensor]:
    """[layer - 1]: the log-probabilities after the tokens if a layer were the last: the model's own
    norm and head."""
    model, states = plain(case), []
    body = model.get_submodule(model.base_model_prefix)
    norm = next(
        m for name, m in body.named_children() if name in ("norm", "norm_f", "final_layernorm")
    )
    hooks = [
        layer.register_forward_hook(
            lambda *x: states.append(x[2][0] if isinstance(x[2], tuple) else x[2])
        )
        for layer in body.layers
    ]
    model(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return [model.lm_head(norm(found[0, -1].clone())).double().log_softmax(-1) for found in states]


@pytest.mark.few(1)
@pytest.mark.parametrize("case", some_quick(CASES + MORE, CASES[:4]))
def test_branches_of_a_three_level_tree_leave_where_plain_transformers_says(case: str) -> None:
    engine = engine_of(case, prefill_tokens=30)
    branches = grow(engine)
    given = [prompt(20 + i, 1 + 4 * i) for i in range(len(branches))]
    if case in (*CASES, "longcat_flash"):  # whose layers are half as many as its configuration says
        lens = [by_hand(case, b.tokens + more) for b, more in zip(branches, given, strict=True)]
    else:
        lens = lenses(plain(case), branches, given)
    layers, h = len(lens[0]), [entropies(row) for row in lens]
    theta = middle([x for row in h for x in row[1:]], 0.8)
    eps = middle([abs(b - a) for row in h for a, b in pairwise(row)], 0.6)
    exit = EarlyExit(theta=theta, eps=eps)
    depths = [paper_depth(row, exit) for row in h]
    assert len(set(depths)) > 1  # the case is worth testing
    meters = {id(b.usage): b.usage for b in branches}.values()
    bytes_before = engine.kv_bytes()
    found, report = ask(engine, branches, given, exit)
    assert report.depths == depths
    rows = [
        sum(len(g) + 1 for g, d in zip(given, depths, strict=True) if d >= layer)
        for layer in range(1, layers + 1)
    ]
    assert report.rows == rows
    assert sum(usage.exit_layer_rows for usage in meters) == sum(rows)
    assert sum(usage.exit_layer_rows_saved for usage in meters) == rows[0] * layers - sum(rows) > 0
    for row, looks, depth in zip(found, lens, depths, strict=True):
        assert row == pytest.approx(looks[depth - 1][CANDIDATES].tolist(), abs=2e-4)
    assert untouched(engine) and engine.kv_bytes() == bytes_before
    forks = engine.fork(branches[0], 2)
    # what was looked at early is computed in full where it is needed
    engine.extend(forks[:1], [given[1]]).result()
    engine.generate([*branches, *forks], 3, sampling=GREEDY)
    for branch in [*branches, *forks]:
        assert_like_plain(plain(case), branch)
    assert_whole(engine, [*branches, *forks])
    assert_nothing_left(engine, [*branches, *forks])


@cache
def asked(case: str) -> Any:
    """An engine with five branches, what they are asked, and what plain transformers says of them
    after each layer."""
    engine = engine_of(case)
    branches, given = problems(engine)
    # one that begins with this pass
    branches, given = [*branches, engine.root([7])], [*given, prompt(26, 12)]
    return (
        engine,
        branches,
        given,
        [by_hand(case, b.tokens + more) for b, more in zip(branches, given, strict=True)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=examples(12))
@over(depths=st.lists(st.integers(1, 4), min_size=6, max_size=6))
def test_whoever_leaves_where_changes_nothing_for_the_others(case: str, depths: list[int]) -> None:
    engine, branches, given, lens = asked(case)
    runs = [[b.tokens[-1], *more] for b, more in zip(branches, given, strict=True)]
    openings = [engine.runtime.opening(branch) for branch in branches]
    with torch.inference_mode(), one_pass(engine.runtime, branches, runs, openings) as (rows, _):
        made = ShrinkingPass(
            engine.lens,
            rows.plan,
            lambda depth, live, _: {i for i in live if depths[rows.order[i]] == depth},
            1,
        )
        made.run(engine.runner, rows.tokens)
    for place, run in enumerate(rows.order):
        depth, logits = made.results[place]
        assert depth == depths[run]
        assert logits.log_softmax(-1).tolist() == pytest.approx(
            lens[run][depth - 1].tolist(), abs=2e-4
        )


def test_a_least_time_step_holds_in_the_opening_of_what_is_asked() -> None:
    engine = engine_of("zamba2")
    branches, given = problems(engine)  # nothing is generated yet
    found, _ = ask(engine, branches, given, EarlyExit(l_min=3, theta=math.inf, eps=math.inf))
    for branch, more, row in zip(branches, given, found, strict=True):
        expected = cut_off(plain("zamba2"), branch.tokens + more, 3).log_softmax(-1)[CANDIDATES]
        assert row == pytest.approx(expected.tolist(), abs=2e-4)


@pytest.mark.parametrize("case", ["jamba", GEMMA4])
def test_a_pass_that_breaks_off_leaves_nothing_behind(case: str) -> None:
    model = copy.deepcopy(plain(case))
    layer = Breakable(decoder_layers(model)[3], "device lost")
    engine = Engine(model, Letters())
    branches, given = problems(engine)
    expected, _ = ask(engine, branches, given, EarlyExit(theta=3.0, eps=1.0))
    before = engine.kv_bytes(), len(engine.tree.segments())
    with layer.failing(), pytest.raises(RuntimeError, match="device lost"):
        ask(engine, branches, given, EarlyExit(theta=0.0))
    assert (engine.kv_bytes(), len(engine.tree.segments())) == before
    assert ask(engine, branches, given, EarlyExit(theta=3.0, eps=1.0))[0] == expected
    assert_nothing_left(engine, branches)


@pytest.mark.few
@pytest.mark.parametrize("case", CASES)
def test_the_decode_gate_stops_who_trails_and_the_leader_goes_on_exactly(case: str) -> None:
    engine = engine_of(case, gate=DecodeGate(theta=0.0, r_gap=0.0))
    branches = engine.fork(engine.root(prompt(1, 14)), 3)
    engine.extend(branches, [prompt(2 + i, 2 + i) for i in range(3)]).result()
    sure = [float(by_hand(case, branch.tokens)[-1].max()) for branch in branches]
    leader = sure.index(max(sure))
    engine.generate(branches, 5, sampling=GREEDY)
    assert [branch.finish_reason == "gate" for branch in branches] == [
        i != leader for i in range(3)
    ]
    assert [len(branch.generated) for branch in branches] == [
        5 if i == leader else 1 for i in range(3)
    ]
    for branch in branches:
        assert_like_plain(plain(case), branch)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("hrm_text", "has no list of its 8 decoder layers"),
        ("mllama", "its last layer does not run on text alone"),
    ],
)
def test_models_without_a_lens_are_refused_by_name(case: str, reason: str) -> None:
    engine = engine_of(case)
    root = engine.root(prompt(1, 14))
    with pytest.raises(UnsupportedModel, match=reason):
        engine.score([root], [[[1], [2]]], exit=ALWAYS).result()
    assert_nothing_left(engine, [root])


def test_a_module_that_serves_several_layers_goes_on_with_its_next_one() -> None:
    storage = Storage(2, 0, 2)
    plan = Plan([], [0, 0], [Run(slice(n, n + 1), [Places(storage, n, 1)]) for n in range(2)])
    assert plan.turn((3, 7)) == 3
    assert Remaining(plan, [1], depth=4).turn((3, 7)) == 7


def test_similar_prompts_stand_on_kv_that_layers_share() -> None:
    """A prompt unlike the root's runs on through the layers that share KV once the similar ones
    have left."""
    engine = engine_of(
        GEMMA4, sharing=Sharing("similar", tau=0.999, probe_layers=1, same_numbers=False)
    )
    head = prompt(1, 20)
    root = engine.root(head + prompt(2, 6))
    alike, other = engine.variants(
        root, [root.tokens[:-2] + root.tokens[-1:], prompt(3, 17)]
    ).result()
    assert other.substituted is None
    engine.generate([root, alike, other], 4, sampling=GREEDY)
    for branch in (root, alike, other):
        assert_like_plain(plain(GEMMA4), branch)
