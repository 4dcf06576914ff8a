"""The engine's calls at their edges: wrong arguments, steps within steps, failures in batches, exact usage."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.ownership import assert_whole
from ttc import Engine, InvalidInput, OutOfMemory
from ttc.residency.resident import Resident
from ttc.tree.branch import Branch


def forked(engine: Engine, n: int) -> list[Branch]:
    root = engine.root([1, 2, 3])
    branches = engine.fork(root, n)
    engine.release([root])
    return branches


def check(engine: Engine, branches: Sequence[Branch]) -> None:
    """Every branch's KV is that of its tokens but the last, and nothing else is kept."""
    assert_whole(engine, branches)
    for branch in branches:
        assert len(branch.logprobs) == len(branch.top1) == len(branch.generated)


def fail_at(engine: Engine, call: int) -> Callable[..., torch.Tensor]:
    """`engine.runner.forward`, but its `call`-th call from now on raises."""
    forward, calls = engine.runner.forward, iter(range(1, 1000))

    def failing(*args: Any) -> torch.Tensor:
        if next(calls) == call:
            raise RuntimeError("device lost")
        return forward(*args)

    return failing


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e, b: e.roots([[1], [2]], seeds=[0]), "2 prompts came with 1 seeds"),
        (lambda e, b: e.roots([[1], []]), "prompt is empty"),
        (lambda e, b: e.root([128]), "token 128, outside the model's vocabulary of 128"),
        (lambda e, b: e.fork(b, -1), "-1 times"),
        (lambda e, b: e.extend([b], []), "1 branches came with 0 token lists"),
        (lambda e, b: e.extend([b, b], [[1], [1]]), "given twice"),
        (lambda e, b: e.extend([b], [[128]]), "extension holds token 128"),
        (lambda e, b: e.generate([b], -1), "max_tokens=-1"),
        (lambda e, b: e.generate([b], []), "1 branches came with 0 values"),
        (lambda e, b: e.generate([b], 1, end=["x", ""]), "empty"),
        (lambda e, b: e.score([b], []), "1 branches came with 0 lists"),
        (lambda e, b: e.score([b], [[[]]]), "continuation is empty"),
        (lambda e, b: e.score([b], [[[1] * 62]]), "65 tokens are more than the model's context of 64"),
        (lambda e, b: e.score([b, b], [[[1]], [[1]]]), "given twice"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(call: Any, message: str) -> None:
    engine = make_engine()
    branch = engine.root([1, 2, 3])
    before = (engine.kv_bytes(), branch.usage.to_dict())
    with pytest.raises(InvalidInput, match=message):
        call(engine, branch)
    assert (engine.kv_bytes(), branch.usage.to_dict(), branch.tokens) == (*before, [1, 2, 3])
    check(engine, [branch])


def test_bad_options_are_named() -> None:
    with pytest.raises(InvalidInput, match="prefill_tokens=0"):
        make_engine(prefill_tokens=0)
    with pytest.raises(InvalidInput, match="budget_gib=0"):
        Resident(budget_gib=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda e, b: e.fork(b, 1),
        lambda e, b: e.extend([b], [[1]]),
        lambda e, b: e.generate([b], 1),
        lambda e, b: e.score([b], [[[1]]]),
    ],
)
def test_a_released_branch_is_refused_but_readable(call: Any) -> None:
    engine = make_engine()
    branch = engine.root([1, 2, 3])
    engine.generate([branch], 2, sampling=GREEDY)
    tokens = branch.tokens[:]
    engine.release([branch])
    engine.release([branch])  # a second time does nothing
    with pytest.raises(InvalidInput, match="released"):
        call(engine, branch)
    assert engine.kv_bytes() == 0
    assert branch.tokens == tokens and branch.text == "".join(map(chr, tokens[3:]))


def test_nothing_asked_is_nothing_done() -> None:
    engine = make_engine()
    assert (engine.roots([]), engine.score([], [])) == ([], [])
    engine.generate([], 5)
    engine.extend([], [])
    assert engine.kv_bytes() == 0


def test_an_end_string_may_begin_in_the_step_before_but_not_in_the_prompt() -> None:
    whole = make_engine()
    expected = whole.root([1, 2, 3])
    whole.generate([expected], 12, sampling=GREEDY)
    pair = expected.text[3:5]
    at = expected.text.index(pair) + 2

    engine = make_engine()
    branch = engine.root([1, 2, 3])
    engine.generate([branch], at - 1, sampling=GREEDY)
    engine.generate([branch], 12, end=[pair], sampling=GREEDY)
    assert (len(branch.generated), branch.finish_reason) == (at, "end")

    later = engine.root(expected.tokens[: 3 + at - 1])  # now the pair's first half is prompt
    engine.generate([later], 1, end=[pair], sampling=GREEDY)
    assert (later.tokens, later.finish_reason) == (expected.tokens[: 3 + at], None)


def test_given_tokens_after_generated_ones_have_no_score() -> None:
    engine = make_engine()
    branch = engine.root([1, 2, 3])
    engine.extend([branch], [[4, 5]])
    assert (branch.prompt_length, branch.logprobs) == (5, [])
    engine.generate([branch], 2, sampling=GREEDY)
    engine.extend([branch], [[6, 7]])
    assert branch.prompt_length == 5 and branch.generated[2:] == [6, 7]
    assert [math.isnan(p) for p in branch.logprobs] == [math.isnan(p) for p in branch.top1] == [False] * 2 + [True] * 2
    check(engine, [branch])


def test_usage_is_exact() -> None:
    engine = make_engine(prefill_tokens=4)
    root = engine.root(list(range(1, 11)))  # 9 tokens in passes of 4, 4, 1
    assert (root.usage.prompt_tokens, root.usage.forward_passes) == (9, 3)
    children = engine.fork(root, 2)
    engine.extend(children[:1], [[20, 21, 22]], purpose="verifier")  # 10, 20, 21
    engine.extend(children[1:], [[30, 31]])  # 10, 30
    engine.generate(children, [1, 3])
    engine.score(children, [[[1], [2]], [[1, 2, 3], [1, 2, 4]]])  # 1 token, then the last one, 1 and 2
    assert {name: count for name, count in root.usage.to_dict().items() if count} == {
        "prompt_tokens": 9 + 2,
        "generated_tokens": 4,
        "verifier_tokens": 3 + 1 + 3,
        "forward_passes": 3 + 1 + 1 + 3 + 1,
    }


@pytest.mark.parametrize("call", range(1, 7))
def test_a_failure_in_a_batch_leaves_every_branch_able_to_go_on(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
    check(engine, branches)
    left = [(b, 3 + limit - len(b.tokens)) for b, limit in zip(branches, limits, strict=True)]
    going = [(b, n) for b, n in left if n]
    engine.generate([b for b, _ in going], [n for _, n in going])
    assert [b.tokens for b in branches] == [b.tokens for b in expected]
    check(engine, branches)


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
    check(engine, [branch])
    assert engine.score([branch], wanted) == expected


@pytest.mark.parametrize("call", [1, 2])
def test_a_failed_extend_leaves_the_branches_as_they_were(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    branches = forked(engine, 2)
    added = [[*range(10, 30), 7], [*range(10, 30), 8, 9]]  # the second waits a round for what it shares
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "forward", fail_at(engine, call))
        with pytest.raises(RuntimeError, match="device lost"):
            engine.extend(branches, added)
    assert [b.tokens for b in branches] == [[1, 2, 3]] * 2
    check(engine, branches)
    engine.generate(branches, 6, sampling=GREEDY)
    whole = make_engine()
    plain = whole.root([1, 2, 3])
    whole.generate([plain], 6, sampling=GREEDY)
    assert [b.tokens for b in branches] == [plain.tokens] * 2


def test_a_refused_extend_leaves_the_branch_as_it_was() -> None:
    engine = make_engine(memory=Resident(26 * make_engine().memory.bytes_per_token / 2**30))
    first, second = forked(engine, 2)
    engine.extend([first], [[*range(10, 30), 7]])
    with pytest.raises(OutOfMemory):
        engine.extend([second], [[*range(10, 30), *[8] * 15]])  # it shares what the first has, the rest is too much
    check(engine, [first, second])


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.root(list(range(1, 31))),
        lambda e: e.generate([e.root([1, 2, 3])], 20),
        lambda e: e.score([e.root([1, 2, 3])], [[[1, 2, 3, 4], [1, 9, 9]]]),
        lambda e: e.extend([e.root([1, 2, 3])], [[4] * 20]),
    ],
)
def test_the_budget_that_the_refusal_names_is_enough(call: Any) -> None:
    budget = 3 * make_engine().memory.bytes_per_token
    with pytest.raises(OutOfMemory) as refused:
        call(make_engine(memory=Resident(budget / 2**30)))
    named = re.search(r"a budget of ([\d,]+) bytes", str(refused.value))
    assert named
    enough = make_engine(memory=Resident(int(named[1].replace(",", "")) / 2**30))
    call(enough)
    assert budget < enough.memory.device.peak_bytes <= int(named[1].replace(",", ""))
