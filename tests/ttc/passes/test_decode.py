"""Decoding: where a step ends, and what a failure leaves."""

from __future__ import annotations

import math

import pytest

from tests.helpers.engines import GREEDY, fail_at, forked, make_engine
from tests.helpers.ownership import assert_whole
from ttc import InvalidInput


def test_steps_end_at_delimiters_limits_and_ends() -> None:
    engine = make_engine()
    whole = engine.root([1, 2, 3])
    engine.generate([whole], 20, sampling=GREEDY)
    texts = [chr(t) for t in whole.generated]
    mark = next(c for c in texts[2:] if c.strip())
    at = texts.index(mark, next(i for i, c in enumerate(texts) if c.strip())) + 1

    stopped, ended, never = engine.roots([[1, 2, 3]] * 3).result()
    engine.generate([stopped], 20, stop=[mark], sampling=GREEDY)
    engine.generate([ended], 20, end=[mark], sampling=GREEDY)
    engine.generate([never], 6, stop=["no such text"], sampling=GREEDY)
    assert (len(stopped.generated), stopped.finish_reason) == (at, None)
    assert (len(ended.generated), ended.finish_reason) == (texts.index(mark) + 1, "end")
    assert (len(never.generated), never.finish_reason) == (6, None)
    engine.generate([stopped], 20 - at, sampling=GREEDY)
    assert stopped.tokens == whole.tokens
    assert stopped.step_ends == [3 + at, 23]

    engine.limits.eos_ids = frozenset([whole.generated[4]])
    first = whole.generated.index(whole.generated[4])
    eos = engine.root([1, 2, 3])
    engine.generate([eos], 20, sampling=GREEDY)
    assert (len(eos.generated), eos.finish_reason) == (first + 1, "eos")
    with pytest.raises(InvalidInput, match="finished"):
        engine.generate([eos], 1)


def test_the_context_ends_a_branch_and_says_so() -> None:
    engine = make_engine()
    branch = engine.root(list(range(1, 61)))
    engine.generate([branch], 20)
    assert (len(branch.tokens), branch.finish_reason) == (64, "context")


def test_given_tokens_after_generated_ones_have_no_score() -> None:
    engine = make_engine()
    branch = engine.root([1, 2, 3])
    engine.extend([branch], [[4, 5]]).result()
    assert (branch.prompt_length, branch.logprobs) == (5, [])
    engine.generate([branch], 2, sampling=GREEDY)
    engine.extend([branch], [[6, 7]]).result()
    assert branch.prompt_length == 5 and branch.generated[2:] == [6, 7]
    assert (
        [math.isnan(p) for p in branch.logprobs]
        == [math.isnan(p) for p in branch.top1]
        == [False] * 2 + [True] * 2
    )
    assert_whole(engine, [branch])


@pytest.mark.few
@pytest.mark.parametrize("call", range(1, 7))
def test_a_failure_in_a_batch_leaves_every_branch_able_to_go_on(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [2, 6, 4]  # by the failure some branches have left the batch

    whole = make_engine()
    expected = forked(whole, 3)
    whole.generate(expected, limits)

    engine = make_engine()
    branches = forked(engine, 3)
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "forward", fail_at(engine, call))
        with pytest.raises(RuntimeError, match="device lost"):
            engine.generate(branches, limits)
    assert [len(b.generated) for b in branches] == [min(call - 1, limit) for limit in limits]
    assert_whole(engine, branches)
    left = [(b, 3 + limit - len(b.tokens)) for b, limit in zip(branches, limits, strict=True)]
    going = [(b, n) for b, n in left if n]
    engine.generate([b for b, _ in going], [n for _, n in going])
    assert [b.tokens for b in branches] == [b.tokens for b in expected]
    assert_whole(engine, branches)
