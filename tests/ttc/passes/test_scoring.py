"""Scores of continuations, against plain transformers."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.helpers.engines import fail_at, make_engine
from tests.helpers.exits import build as build_deep
from tests.helpers.models import build, prompt
from tests.helpers.ownership import assert_whole
from tests.helpers.tokenizers import Letters
from ttc import Engine


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek_v3"])
@torch.no_grad()
def test_score_equals_plain_transformers(family: str) -> None:
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=4)
    branches = engine.roots([prompt(1, 12), prompt(2, 17)])
    tails = [[[5, 6, 7], [5, 6, 8, 9, 1, 2], [5]], [[3], [4]]]
    for branch, group, scores in zip(branches, tails, engine.score(branches, tails), strict=True):
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
    (found,) = engine.score([branch], [tails], given=[given])
    for tail, row in zip(tails, found, strict=True):
        tokens = branch.tokens + given + tail
        logprobs = plain(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
        places = range(len(tokens) - len(tail), len(tokens))
        assert row == pytest.approx([float(logprobs[n - 1, tokens[n]]) for n in places], abs=1e-9)


@pytest.mark.parametrize("call", [1, 2])
def test_a_failed_score_leaves_no_trace(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    branch = engine.root([1, 2, 3])
    before, wanted = engine.kv_bytes(), [[[4, 5, 6], [4, 7, 8]]]
    expected = engine.score([branch], wanted)
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "forward", fail_at(engine, call))
        with pytest.raises(RuntimeError, match="device lost"):
            engine.score([branch], wanted)
    assert engine.kv_bytes() == before
    assert_whole(engine, [branch])
    assert engine.score([branch], wanted) == expected
