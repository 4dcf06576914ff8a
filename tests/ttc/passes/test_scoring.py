"""Scores of continuations, against plain transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.helpers.engines import GREEDY, fail_at, make_engine
from tests.helpers.exits import build as build_deep
from tests.helpers.models import build, prompt, small
from tests.helpers.ownership import assert_whole
from tests.helpers.tokenizers import Letters
from ttc import EarlyExit, Engine, InvalidInput, Resident


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek_v3"])
@torch.no_grad()
def test_score_equals_plain_transformers(family: str) -> None:
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=4)
    branches = engine.roots([prompt(1, 12), prompt(2, 17)]).result()
    tails = [[[5, 6, 7], [5, 6, 8, 9, 1, 2], [5]], [[3], [4]]]
    for branch, group, scores in zip(
        branches, tails, engine.score(branches, tails).result(), strict=True
    ):
        for continuation, found in zip(group, scores, strict=True):
            logits = plain(torch.tensor([branch.tokens + continuation]), use_cache=False).logits[0]
            rows = logits[len(branch.tokens) - 1 : -1].log_softmax(-1)
            expected = [float(row[token]) for row, token in zip(rows, continuation, strict=True)]
            assert found == pytest.approx(expected, abs=1e-4 + 1e-5 * float(logits.abs().max()))
    assert [len(b.tokens) for b in branches] == [12, 17]
    engine.release(branches)
    assert engine.kv_bytes() == 0


@torch.no_grad()
def test_given_tokens_are_computed_and_not_scored() -> None:
    plain = build_deep("llama")
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=3)
    branch = engine.root(prompt(1, 9))
    given, tails = prompt(2, 7), [[5, 6, 7], [5, 6, 8, 9], [5]]
    (found,) = engine.score([branch], [tails], given=[given]).result()
    for tail, row in zip(tails, found, strict=True):
        tokens = branch.tokens + given + tail
        logprobs = plain(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
        places = range(len(tokens) - len(tail), len(tokens))
        assert row == pytest.approx([float(logprobs[n - 1, tokens[n]]) for n in places], abs=1e-9)


@torch.no_grad()
def test_the_likeliest_tokens_score_stands_beside_each_token_s() -> None:
    plain = build("llama")
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=4)
    branch = engine.root(prompt(1, 12))
    greedy = plain.generate(
        torch.tensor([branch.tokens]), do_sample=False, max_new_tokens=3, pad_token_id=0
    )
    tails = [greedy[0, 12:].tolist(), [5, 6, 7, 8], [5]]
    best: list[list[list[float]]] = []
    (scores,) = engine.score([branch], [tails], likeliest=best).result()
    assert best[0][0] == scores[0] and best[0][1] != scores[1]
    for tail, tops in zip(tails, best[0], strict=True):
        logits = plain(torch.tensor([branch.tokens + tail]), use_cache=False).logits[0]
        rows = logits[len(branch.tokens) - 1 : -1].log_softmax(-1)
        assert tops == pytest.approx(
            rows.amax(-1).tolist(), abs=1e-4 + 1e-5 * float(logits.abs().max())
        )


@torch.no_grad()
def test_the_last_token_that_is_scored_needs_no_place_in_the_context() -> None:
    engine = make_engine(context=16)
    branch, tail = engine.root(prompt(1, 10)), prompt(2, 7)
    (row,) = engine.score([branch], [[tail]]).result()[0]
    plain = small(context=16)
    rows = (
        plain(torch.tensor([branch.tokens + tail[:-1]]), use_cache=False)
        .logits[0, 9:]
        .log_softmax(-1)
    )
    assert row == pytest.approx([float(r[t]) for r, t in zip(rows, tail, strict=True)], abs=1e-4)
    with pytest.raises(InvalidInput, match="17 tokens are more than the model's context of 16"):
        engine.score([branch], [[prompt(2, 8)]]).result()


@pytest.mark.parametrize("call", [1, 2])
def test_a_failed_score_leaves_no_trace(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(prefill_tokens=2)
    branch = engine.root([1, 2, 3])
    before, wanted = engine.kv_bytes(), [[[4, 5, 6], [4, 7, 8]]]
    expected = engine.score([branch], wanted).result()
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "forward", fail_at(engine, call))
        with pytest.raises(RuntimeError, match="device lost"):
            engine.score([branch], wanted).result()
    assert engine.kv_bytes() == before
    assert_whole(engine, [branch])
    assert engine.score([branch], wanted).result() == expected


def scores_of_branches(engine: Engine) -> list[list[list[float]]]:
    """Of four that must be in one pass, of which three lack their KV and share most of it."""
    root = engine.root(prompt(1, 60))
    branches = engine.fork(root, 4)
    engine.generate(branches, 5, sampling=GREEDY)
    for branch in branches[1:]:
        engine.tree.move(branch, engine.tree.trunk)
    exit = EarlyExit(rule="ranking", l_min=1, patience=1)
    return engine.score(branches, [[[5], [6]]] * 4, exit=exit).result()


def scores_of_continuations(engine: Engine) -> list[list[list[float]]]:
    """Of several behind the same given words."""
    tails = [[number, 5, 6, 7] for number in range(20, 26)]
    return engine.score([engine.root(prompt(1, 12))], [tails], given=[prompt(2, 60)]).result()


@pytest.mark.parametrize("scores", [scores_of_branches, scores_of_continuations])
def test_a_budget_need_hold_what_is_shared_but_once(scores: Any) -> None:
    free = make_engine(context=128)
    expected = scores(free)
    peak_gib = free.memory.device.peak_bytes / 2**30
    found = scores(make_engine(context=128, memory=Resident(1.05 * peak_gib)))
    assert flat(found) == pytest.approx(flat(expected), abs=1e-5)


def flat(scores: list[list[list[float]]]) -> list[float]:
    return [score for group in scores for row in group for score in row]
