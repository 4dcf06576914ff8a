"""Early exits against plain transformers cut off at a layer, and what they leave behind:
nothing."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.helpers.backends import FakeBackend
from tests.helpers.breaking import Breakable
from tests.helpers.engines import words_engine
from tests.helpers.exits import (
    ALWAYS,
    CANDIDATES,
    CORE,
    LAYERS,
    MODELS,
    NEVER,
    ask,
    build,
    cut_off,
    entropies,
    lenses,
    middle,
    paper_depth,
    problems,
    untouched,
)
from tests.helpers.models import FEW, prompt
from tests.helpers.tiers import slow, some_quick
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Engine, Headwise, InvalidInput, Layerwise, Paged, UnsupportedModel
from ttc.approximate.early_exit import EarlyExit, EntropyRule
from ttc.branch import Branch
from ttc.model.check.model_check import CHECK_TOKENS
from verifiers import SelfVerifier


def llama(**options: Any) -> tuple[Engine, list[Branch], list[list[int]]]:
    engine = Engine(build("llama"), Letters(), **options)
    return engine, *problems(engine)


# -------------------------------------------------------------------- against plain transformers


@pytest.mark.few
@pytest.mark.parametrize("family", some_quick(MODELS, FEW))
def test_without_an_exit_firing_the_scores_are_the_models_own(family: str) -> None:
    plain = build(family, torch.float32)
    engine = Engine(copy.deepcopy(plain), Letters())
    branches, given = problems(engine)
    expected, _ = ask(engine, branches, given, None)
    assert "lens" not in vars(engine)
    found, report = ask(engine, branches, given, NEVER)
    assert report.depths == [LAYERS] * 5 and report.layer_rows == report.rows[0] * LAYERS
    for branch, more, full, row in zip(branches, given, expected, found, strict=True):
        assert row == pytest.approx(full, abs=1e-5, rel=1e-5)
        logits = cut_off(plain, branch.tokens + more, LAYERS)
        assert row == pytest.approx(logits.log_softmax(-1)[CANDIDATES].tolist(), abs=1e-4, rel=1e-5)
    # to the bit, after an exit as before it
    assert ask(engine, branches, given, None)[0] == expected


@pytest.mark.few(1)
@pytest.mark.parametrize("common_depth", [False, True])
@pytest.mark.parametrize("family", some_quick(CORE, ["llama", "gemma2"]))
def test_the_papers_rule_row_by_row(family: str, common_depth: bool) -> None:
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters())
    branches, given = problems(engine)
    lens = lenses(plain, branches, given)
    h = [entropies(layers) for layers in lens]
    theta = middle([x for row in h for x in row[1:]], 0.75)
    eps = middle([abs(b - a) for row in h for a, b in pairwise(row)], 0.5)
    exit = EarlyExit(theta=theta, eps=eps, common_depth=common_depth)
    depths = [paper_depth(row, exit) for row in h]
    assert len(set(depths)) > 1  # the case is worth testing
    if common_depth:
        depths = [max(depths[:3])] * 3 + [max(depths[3:])] * 2
    found, report = ask(engine, branches, given, exit)
    assert report.depths == depths
    assert report.rows == [
        sum(len(g) + 1 for g, d in zip(given, depths, strict=True) if d >= layer)
        for layer in range(1, LAYERS + 1)
    ]
    for row, layers, depth in zip(found, lens, depths, strict=True):
        assert row == pytest.approx(layers[depth - 1][CANDIDATES].tolist(), abs=1e-4)
    # whoever stays gets what it gets alone
    for i, branch in enumerate(branches if not common_depth else ()):
        alone, one = ask(engine, [branch], [given[i]], exit)
        assert one.depths == [depths[i]]
        assert alone[0] == pytest.approx(
            found[i], abs=1e-9 if family in ("llama", "opt", "gpt2") else 1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "patience", "positive"),
    [("llama", 1, 1), ("llama", 2, 1), ("llama", 3, 1), ("gemma2", 2, 2), ("opt", 3, 2)],
)
def test_a_problem_leaves_when_its_order_has_held(
    family: str, patience: int, positive: int
) -> None:
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters())
    branches, given = problems(engine)
    lens = lenses(plain, branches, given)
    p = [[float(x[CANDIDATES].softmax(-1)[:positive].sum()) for x in layers] for layers in lens]
    depths = []
    for rows in ([0, 1, 2], [3, 4]):
        orders = [sorted(rows, key=lambda i, at=at: -p[i][at]) for at in range(LAYERS)]
        stable = (
            end
            for end in range(2 + patience - 1, LAYERS)
            if orders[end - patience : end] == [orders[end - 1]] * patience
        )
        depths += [next(stable, LAYERS)] * len(rows)
    found, report = ask(
        engine, branches, given, EarlyExit("ranking", patience=patience, positive=positive)
    )
    assert report.depths == depths
    for row, layers, depth in zip(found, lens, depths, strict=True):
        assert row == pytest.approx(layers[depth - 1][CANDIDATES].tolist(), abs=1e-5)


def test_algorithm_3_asks_for_less_than_theta_and_less_than_eps_from_l_min_on() -> None:
    """l* >= l_min, H < theta, and |H - H of the layer before| < eps: at the bounds themselves."""
    exit = EarlyExit(l_min=3, theta=2.0, eps=0.5)
    for h, leaves in (
        ([1.0, 1.0, 1.0], [2]),  # not before l_min
        ([1.0, 1.5, 1.0, 1.25], [3]),  # a change of eps is too much
        ([1.0, 1.5, 2.0, 1.75], [3]),  # and so is an entropy of theta
        ([1.75, 1.75, 2.0, 2.0, 1.5, 1.25], [5]),
        ([9.0, 1.0, 1.5, 1.25], [3]),  # compared with the last layer, not with the least
    ):
        rule = EntropyRule(exit, [[0]])
        left = [n for n, each in enumerate(h) if rule.leaving(n + 1, {0: each})]
        assert left == leaves


def test_nothing_leaves_at_the_first_layer_as_the_entropy_before_it_is_infinite() -> None:
    rule = EntropyRule(EarlyExit(l_min=1, theta=2.0, eps=99.0), [[0]])
    assert [rule.leaving(layer, {0: 1.0}) for layer in (1, 2)] == [set(), {0}]


def test_who_has_settled_waits_for_its_problem_whatever_its_entropy_does_since() -> None:
    rule = EntropyRule(EarlyExit(l_min=2, theta=2.0, eps=0.5, common_depth=True), [[0, 1], [2]])
    seen = [{0: 1.0, 1: 1.0, 2: 9.0}, {0: 1.0, 1: 3.0, 2: 9.0}, {0: 5.0, 1: 1.0, 2: 1.0}]
    assert [rule.leaving(layer, h) for layer, h in enumerate(seen, 1)] == [set(), set(), set()]
    assert rule.leaving(4, {0: 7.0, 1: 1.0, 2: 1.0}) == {0, 1, 2}


def test_a_problems_only_branch_has_no_order() -> None:
    engine, branches, given = llama()
    _, report = ask(engine, branches[2:], given[2:], EarlyExit("ranking", l_min=1, patience=1))
    assert report.depths == [LAYERS, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("prefill_tokens", [1, slow(16), 30, slow(512)])
def test_scores_do_not_depend_on_how_branches_are_batched(prefill_tokens: int) -> None:
    whole, engine = (
        Engine(build("llama"), Letters()),
        Engine(build("llama"), Letters(), prefill_tokens=prefill_tokens),
    )
    for exit in (
        EarlyExit(theta=4.0, eps=0.3),
        EarlyExit(theta=4.0, eps=0.3, common_depth=True),
        EarlyExit("ranking"),
    ):
        branches, given = problems(whole)
        expected, one = ask(whole, branches, given, exit)
        branches, given = problems(engine)
        before = [b.usage.forward_passes for b in branches]
        order = [3, 0, 4, 2, 1]
        found, report = ask(engine, [branches[i] for i in order], [given[i] for i in order], exit)
        assert [report.depths[order.index(i)] for i in range(5)] == one.depths
        assert (report.rows, report.lens_rows) == (one.rows, one.lens_rows)
        for i, row in zip(order, found, strict=True):
            assert row == pytest.approx(expected[i], abs=1e-9)
        # rows of the first problem: 13, 11, 9
        passes = branches[0].usage.forward_passes - before[0]
        assert passes == (1 if exit.together else {1: 3, 16: 3, 30: 2, 512: 1}[prefill_tokens])


KIB = 1 / 2**20


@pytest.mark.few
@pytest.mark.parametrize(
    "policy",
    [
        Layerwise(64 * KIB),
        BeamGroups(64 * KIB, block_tokens=8),
        Paged(64 * KIB, block_tokens=8),
        Headwise(64 * KIB),
    ],
)
def test_exits_over_every_residency_policy(policy: Any) -> None:
    exit = EarlyExit(theta=4.0, eps=0.3)
    expected, one = ask(*llama(), exit)
    engine, branches, given = llama(memory=policy)
    before = list(engine.memory.live)
    found, report = ask(engine, branches, given, exit)
    assert len(set(one.depths)) > 1 and report == one
    assert engine.memory.link.to_device_bytes.total() > 0
    for row, full in zip(found, expected, strict=True):
        assert row == pytest.approx(full, abs=1e-9)
    assert list(engine.memory.live) == before
    engine.release(branches)
    assert engine.kv_bytes() == 0


# -------------------------------------------------------------------- what is left behind


@pytest.mark.few
@pytest.mark.parametrize(
    "exit", [NEVER, ALWAYS, EarlyExit(theta=4.0, eps=0.3), EarlyExit("ranking", patience=1)]
)
def test_nothing_is_left_behind(exit: EarlyExit) -> None:
    engine, branches, given = llama()
    tokens = [b.tokens[:] for b in branches]
    before = engine.kv_bytes(), len(engine.tree.segments())
    ask(engine, branches, given, exit)
    assert untouched(engine)
    assert (engine.kv_bytes(), len(engine.tree.segments())) == before
    assert [b.tokens for b in branches] == tokens
    # a run that was cut off is not found by one that needs all of its layers
    engine.extend(branches, given).result()
    expected, others, _ = llama()
    expected.extend(others, given).result()
    assert ask(engine, branches, [[]] * 5, None) == ask(expected, others, [[]] * 5, None)
    engine.release(branches)
    assert engine.kv_bytes() == 0 and engine.tree.segments() == []


@pytest.mark.parametrize("layer", [0, 3])
def test_a_failing_layer_leaves_nothing_behind(layer: int) -> None:
    model = build("llama")
    mlp = Breakable(model.model.layers[layer].mlp, "broken")
    engine = Engine(model, Letters())
    branches, given = problems(engine)
    expected, _ = ask(engine, branches, given, ALWAYS)
    before = engine.kv_bytes(), len(engine.tree.segments())
    with mlp.failing(), pytest.raises(RuntimeError, match="broken"):
        ask(engine, branches, given, NEVER)
    assert untouched(engine)
    assert (engine.kv_bytes(), len(engine.tree.segments())) == before
    assert ask(engine, branches, given, ALWAYS)[0] == expected


def test_a_layers_own_wrapper_is_used_and_put_back() -> None:
    engine, branches, given = llama()
    layer, calls = engine.model.model.layers[3], []
    original = layer.forward

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls.append(args[0].shape[1])
        return original(*args, **kwargs)

    layer.forward = wrapper
    engine.lens  # noqa: B018
    # KV is computed again for the model that has changed
    ask(engine, branches, given, EarlyExit(theta=4.0, eps=0.3))
    calls.clear()
    _, report = ask(engine, branches, given, EarlyExit(theta=4.0, eps=0.3))
    assert layer.forward is wrapper
    assert calls == [report.rows[3]]


# -------------------------------------------------------------------- counters and input


def test_what_is_counted() -> None:
    engine, branches, given = llama()
    exit = EarlyExit(theta=4.0, eps=0.3)
    before = [branches[i].usage.verifier_tokens for i in (0, 3)]
    _, report = ask(engine, branches, given, exit)
    rows = [len(g) + 1 for g in given]
    for start, stop, tokens in ((0, 3, before[0]), (3, 5, before[1])):
        usage, here = branches[start].usage, slice(start, stop)
        depths = report.depths[here]
        assert usage.verifier_tokens - tokens == sum(rows[here])
        assert usage.exit_layer_rows == sum(r * d for r, d in zip(rows[here], depths, strict=True))
        assert usage.exit_layer_rows + usage.exit_layer_rows_saved == LAYERS * sum(rows[here])
        assert usage.lens_rows == sum(depths)  # looked at from layer l_min - 1 = 1 on
    usages = [branches[i].usage for i in (0, 3)]
    assert report.layer_rows == sum(u.exit_layer_rows for u in usages) > 0
    saved = report.rows[0] * len(report.rows) - report.layer_rows
    assert saved == sum(u.exit_layer_rows_saved for u in usages) > 0
    assert report.lens_rows == sum(u.lens_rows for u in usages)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "best"}, "rule='best'"),
        ({"l_min": 0}, "l_min=0"),
        ({"patience": 0}, "patience=0"),
        ({"positive": 0}, "positive=0"),
        ({"theta": -1.0}, "theta=-1.0"),
        ({"eps": math.nan}, "eps=nan"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        EarlyExit(**settings)


def test_bad_calls_are_named() -> None:
    engine = Engine(build("llama"), Letters())
    branch = engine.root(prompt(1, 9))
    with pytest.raises(InvalidInput, match="has 2 tokens"):
        engine.score([branch], [[[1], [2, 3]]], exit=ALWAYS).result()
    with pytest.raises(InvalidInput, match=r"l_min=6 is more than the model's 5 layers"):
        engine.score([branch], [[[1]]], exit=EarlyExit(l_min=6)).result()
    with pytest.raises(InvalidInput, match=r"positive=2 leaves none of 2"):
        engine.score([branch], [[[1], [2]]], exit=EarlyExit("ranking", positive=2)).result()
    with pytest.raises(InvalidInput, match="branches: 1, lists of given tokens: 2"):
        engine.score([branch], [[[1]]], given=[[1], [2]]).result()
    with pytest.raises(InvalidInput, match="context of 256"):
        engine.score([branch], [[[1]]], given=[[1] * 248], exit=ALWAYS).result()
    with pytest.raises(InvalidInput, match="holds token 999"):
        engine.score([branch], [[[1]]], given=[[999]], exit=ALWAYS).result()
    assert engine.score([], [], exit=ALWAYS).result() == []
    assert untouched(engine)


def test_a_model_whose_lens_is_not_its_end_is_refused() -> None:
    engine, branches, given = llama()
    hook = engine.model.lm_head.register_forward_hook(lambda module, args, out: out * out.shape[1])
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM gives other logits"):
        ask(engine, branches, given, ALWAYS)
    hook.remove()
    engine.model.model.layers[1].self_attn.layer_idx = 7
    with pytest.raises(
        UnsupportedModel, match="LlamaForCausalLM has no list of its 5 decoder layers"
    ):
        engine.lens  # noqa: B018
    engine.model.model.layers[1].self_attn.layer_idx = 1
    mlp = engine.model.model.layers[1].mlp
    mlp.forward = lambda x: x.view(1, CHECK_TOKENS, -1)  # the rows of the check before any leaves
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM cannot leave"):
        engine.lens  # noqa: B018
    del mlp.forward
    ask(engine, branches, given, ALWAYS)
    assert untouched(engine)


# -------------------------------------------------------------------- the self-verifier


@pytest.mark.parametrize("chat", [False, True])
def test_the_self_verifier_asks_within_the_pass(chat: bool) -> None:
    engine = words_engine()
    engine.tokenizer.chat_template = "yes" if chat else None
    branches = engine.roots([[9, 10, 11, 5, 6], [9, 10, 7, 7, 8, 0]]).result()
    expected = SelfVerifier("is it right ?").rate(branches, ["", ""], engine)
    spent = [b.usage.verifier_tokens for b in branches]
    found = SelfVerifier("is it right ?", EarlyExit(theta=0)).rate(branches, ["", ""], engine)
    assert [score for (score,) in found] == pytest.approx(
        [score for (score,) in expected], abs=1e-5
    )
    assert [b.usage.verifier_tokens for b in branches] == [2 * n for n in spent]
    early = SelfVerifier("is it right ?", EarlyExit(l_min=1, rule="ranking", patience=1))
    twins = engine.fork(branches[0], 2)
    engine.extend(twins, [[7], [8]]).result()
    early.rate(twins, ["", ""], engine)
    asked = branches[0].usage.exit_layer_rows_saved
    assert asked == 2 * (spent[0])  # one of two layers, for each row of each twin


def test_an_exit_needs_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    monkeypatch.setattr(backend, "encode", lambda text: [1])
    with pytest.raises(InvalidInput, match="FakeBackend has no exit"):
        SelfVerifier(exit=ALWAYS).rate([], [], backend)  # type: ignore[arg-type]
