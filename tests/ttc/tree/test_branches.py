"""Ownership, sharing, steps and bad input, on a tiny random model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import settings

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.ownership import Ownership
from ttc import Engine, InvalidInput, OutOfMemory
from ttc.residency.resident import Resident

TestOwnership = Ownership.TestCase
TestOwnership.settings = settings(max_examples=25, stateful_step_count=20, deadline=None, derandomize=True)


def test_a_shared_prefix_is_stored_once_however_many_branches() -> None:
    engine = make_engine()
    root = engine.root(list(range(1, 41)))
    before = engine.kv_bytes()
    assert before == 39 * engine.memory.bytes_per_token
    children = engine.fork(root, 32)
    assert engine.kv_bytes() == before
    engine.generate(children, 2)
    assert engine.kv_bytes() == before + 32 * 2 * engine.memory.bytes_per_token


def test_prompts_share_their_longest_common_prefix() -> None:
    engine = make_engine()
    first = engine.root(list(range(1, 31)))
    second = engine.root([*range(1, 21), 99, 98])
    assert (first.usage.prompt_tokens, second.usage.prompt_tokens, second.usage.shared_tokens) == (29, 1, 20)
    assert sorted(len(s.tokens) for s in engine.tree.segments()) == [1, 9, 20]
    batch = make_engine().roots([list(range(1, 31)), [*range(1, 21), 99, 98], list(range(1, 31))])
    assert [b.usage.prompt_tokens for b in batch] == [29, 1, 0]


def test_hints_that_branches_share_are_computed_once() -> None:
    engine = make_engine()
    children = engine.fork(engine.root([1, 2, 3]), 2)
    engine.extend(children, [[*range(10, 30), 7], [*range(10, 30), 8]])
    assert [c.usage.shared_tokens for c in children] == [21, 21]  # one meter: they share a root
    assert children[0].usage.prompt_tokens == 2 + 21


def test_a_pruned_tree_becomes_one_run() -> None:
    engine = make_engine()
    branch = engine.root([1, 2, 3, 4])
    for _ in range(5):
        kept, *pruned = engine.fork(branch, 3)
        engine.release([branch, *pruned])
        engine.generate([kept], 4, sampling=GREEDY)
        branch = kept
    assert len(engine.tree.segments()) <= 2
    plain = make_engine().root([1, 2, 3, 4])
    engine_two = make_engine()
    plain = engine_two.root([1, 2, 3, 4])
    engine_two.generate([plain], 20, sampling=GREEDY)
    assert plain.tokens == branch.tokens


def test_steps_end_at_delimiters_limits_and_ends() -> None:
    engine = make_engine()
    whole = engine.root([1, 2, 3])
    engine.generate([whole], 20, sampling=GREEDY)
    texts = [chr(t) for t in whole.generated]
    mark = next(c for c in texts[2:] if c.strip())
    at = texts.index(mark, next(i for i, c in enumerate(texts) if c.strip())) + 1

    stopped, ended, never = engine.roots([[1, 2, 3]] * 3)
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


def test_usage_counts_every_token() -> None:
    engine = make_engine()
    root = engine.root([1, 2, 3, 4, 5])
    children = engine.fork(root, 3)
    engine.generate(children, [2, 3, 4])
    engine.score(children[:1], [[[1], [2]]])
    usage = root.usage
    assert (usage.prompt_tokens, usage.generated_tokens, usage.verifier_tokens) == (4, 9, 1)
    assert usage.forward_passes == 1 + 4 + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e, b: e.root([]), "prompt is empty"),
        (lambda e, b: e.root([1] * 64), "leaves no room"),
        (lambda e, b: e.root([1] * 65), "65 tokens are more than the model's context of 64"),
        (lambda e, b: e.root([1, 500]), "token 500"),
        (lambda e, b: e.root([-1]), "token -1"),
        (lambda e, b: e.fork(b, 0), "0 times"),
        (lambda e, b: e.generate([b], 0), "max_tokens=0"),
        (lambda e, b: e.generate([b], [1, 2]), "1 branches came with 2"),
        (lambda e, b: e.generate([b, b], 1), "given twice"),
        (lambda e, b: e.generate([b], 1, stop=[""]), "empty"),
        (lambda e, b: e.extend([b], [[]]), "extension is empty"),
        (lambda e, b: e.extend([b], [[1] * 62]), "more than the model's context"),
        (lambda e, b: e.score([b], [[]]), "no continuation"),
        (lambda e, b: (e.release([b]), e.generate([b], 1)), "released"),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    engine = make_engine()
    branch = engine.root([1, 2, 3])
    with pytest.raises(InvalidInput, match=message):
        call(engine, branch)


def test_a_budget_too_small_names_one_that_would_do() -> None:
    def run(budget: int | None) -> Engine:
        engine = make_engine(memory=Resident(budget and budget / 2**30))
        engine.generate(engine.fork(engine.root(list(range(1, 31))), 4), 8)
        return engine

    with pytest.raises(OutOfMemory) as refused:
        run(30 * make_engine().memory.bytes_per_token)
    enough = int(str(refused.value).split("a budget of ")[1].split(" bytes")[0].replace(",", ""))
    assert run(enough).memory.device.peak_bytes <= enough
    with pytest.raises(OutOfMemory):
        run(enough - 1)


def test_a_failure_in_the_middle_loses_and_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_engine()
    expected = whole.root([1, 2, 3])
    whole.generate([expected], 8, sampling=GREEDY)

    engine = make_engine()
    branch = engine.root([1, 2, 3])
    forward, calls = engine.runner.forward, []

    def failing(*args: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("device lost")
        return forward(*args)

    monkeypatch.setattr(engine.runner, "forward", failing)
    with pytest.raises(RuntimeError, match="device lost"):
        engine.generate([branch], 8, sampling=GREEDY)
    assert len(branch.generated) == 3
    engine.generate([branch], 5, sampling=GREEDY)
    assert branch.tokens == expected.tokens
    with pytest.raises(RuntimeError):
        calls.clear()
        calls += [1, 1, 1]
        engine.root(list(range(50, 60)))
    engine.release([branch])
    assert engine.kv_bytes() == 0
