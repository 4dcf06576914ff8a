"""The tree that is compared with plain transformers, and the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.engines import GREEDY
from tests.helpers.models import prompt
from ttc import Engine
from ttc.branch import Branch


@torch.no_grad()
def logits_as_generate(plain: Any, tokens: list[int], first: int) -> Tensor:
    """What `generate` computes: a run over the first tokens, then one for each of the others, with
    its cache."""
    ids = torch.tensor([tokens])
    output = plain(ids[:, :first], use_cache=True)
    parts = [output.logits[0]]
    for place in range(first, len(tokens)):
        output = plain(
            ids[:, place : place + 1], past_key_values=output.past_key_values, use_cache=True
        )
        parts.append(output.logits[0])
    return torch.cat(parts)


@torch.no_grad()
def assert_like_plain(
    plain: Any, branch: Branch, bound: float | None = None, as_generate: bool = False
) -> None:
    """Every generated token is plain greedy's, every log-probability plain's within the bound.
    as_generate: not of one run over the whole branch."""
    if as_generate:
        logits = logits_as_generate(plain, branch.tokens, branch.prompt_length).double()
    else:
        logits = plain(torch.tensor([branch.tokens]), use_cache=False).logits[0].double()
    limit = (1e-4 + 1e-5 * float(logits.abs().max())) if bound is None else bound
    expected = logits.log_softmax(-1)
    for place, (token, logprob, top1) in enumerate(
        zip(branch.generated, branch.logprobs, branch.top1, strict=True)
    ):
        row = expected[branch.prompt_length + place - 1]
        if logprob != logprob:  # a given token, not a generated one
            continue
        assert token == int(row.argmax())
        assert abs(float(row[token]) - logprob) <= limit
        assert abs(float(row.max().exp()) - top1) <= limit


def assert_same(found: Sequence[Branch], expected: Sequence[Branch]) -> None:
    """Branches have the same tokens, and log-probabilities to the rounding of float32."""
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def assert_scores_like_plain(
    plain: Any,
    branch: Branch,
    given: list[int],
    continuations: Sequence[list[int]],
    scores: Sequence[list[float]],
    first: int | None = None,
) -> None:
    """The log-probabilities of continuations after a branch and given tokens. first: of `generate`,
    which runs over so many tokens at once, not of one run over all."""
    tokens = branch.tokens + given
    for continuation, found in zip(continuations, scores, strict=True):
        whole = tokens + continuation
        with torch.no_grad():
            if first is None:
                logits = plain(torch.tensor([whole]), use_cache=False).logits[0]
            else:
                logits = logits_as_generate(plain, whole, first)
        rows = logits.double().log_softmax(-1)[len(tokens) - 1 : -1]
        expected = [float(row[token]) for row, token in zip(rows, continuation, strict=True)]
        assert found == pytest.approx(expected, abs=1e-4 + 1e-5 * float(logits.abs().max()))


def grow(engine: Engine) -> list[Branch]:
    """A three-level tree over two roots: ragged lengths, pruning, a longer prefix than any
    window."""
    shared = prompt(1, 20)
    first, second = engine.roots(
        [shared + prompt(2, 7), shared + prompt(3, 12)], seeds=[1, 2]
    ).result()
    level = engine.fork(first, 3) + engine.fork(second, 2)
    engine.release([first, second])
    engine.extend(level[:3], [prompt(4, 1), prompt(5, 6), prompt(6, 3)]).result()
    engine.generate(level, [3, 9, 5, 2, 4], sampling=GREEDY)
    engine.release([level[0], level[4]])
    next_level = engine.fork(level[1], 2) + engine.fork(level[2], 1) + engine.fork(level[3], 2)
    engine.release(level[1:4])
    engine.generate(next_level, 4, sampling=GREEDY)
    engine.release(next_level[1:3])
    kept = [next_level[0], *next_level[3:]]
    engine.extend(kept[:1], [prompt(7, 2)]).result()
    last = engine.fork(kept[0], 2) + kept[1:]
    engine.release(kept[:1])
    engine.generate(last, 3, sampling=GREEDY)
    return last
