"""Decode passes that compiled layers run as a whole, attention included, against those that they
run part by part."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import ttc.model.compiled.fused_runner
from tests.helpers.tokenizers import Letters
from tests.ttc.model.compiled.test_fused_runner import model_of
from ttc import Engine
from ttc.attention.all_layers import LayerCalls, all_layers
from ttc.attention.plan import Plan
from ttc.model.compiled.cpu_program import Program
from ttc.residency.paged import Paged

KIB = 1 / 2**20
NAMES = ("llama", "mistral, with a window", "heads wider than the states", "wide rows")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The parts that programs have run, None for all."""
    run, parts = Program.run, list[int | None]()

    def watched(self: Program, part: int | None = None) -> None:
        parts.append(part)
        run(self, part)

    monkeypatch.setattr(Program, "run", watched)
    return parts


def search(model: Any, **options: Any) -> list[tuple[list[int], list[float]]]:
    """Two problems, whose branches end after different numbers of tokens and go on together."""
    engine = Engine(copy.deepcopy(model), Letters(), runner="fused", **options)
    roots = engine.roots([[1, 2, 3, 4, 5], [9, 8, 7]]).result()
    branches = [branch for root in roots for branch in engine.fork(root, 3)]
    engine.generate(branches, [9, 3, 5, 9, 1, 2])
    twins = engine.fork(branches[0], 2)
    engine.generate([*branches, *twins], 6)
    return [(branch.tokens, branch.logprobs) for branch in [*branches, *twins]]


CASES = [*((name, 1) for name in NAMES), ("wide rows", 2)]
"""That two threads share a pass shows in the model whose rows are wide."""


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "threads"), CASES)
def test_they_find_the_same_bits(
    name: str, threads: int, runs: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, before = model_of(name), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = search(model)
        assert runs.count(None) == 9 + 6  # every token, that after a change of rows too
        runs.clear()
        monkeypatch.setattr(ttc.model.compiled.fused_runner, "all_layers", lambda *_: None)
        assert search(model) == found
        assert None not in runs
    finally:
        torch.set_num_threads(before)


def test_what_streams_in_is_attended_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    model, streamed = model_of("llama"), list[bool]()
    plain = search(model)

    def watched(plan: Plan, *arguments: Any) -> LayerCalls | None:
        calls = all_layers(plan, *arguments)
        if plan.stream is not None:
            streamed.append(calls is not None)
        return calls

    monkeypatch.setattr(ttc.model.compiled.fused_runner, "all_layers", watched)
    found = search(model, memory=Paged(4 * KIB, block_tokens=8))
    assert set(streamed) == {False}
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in plain]
