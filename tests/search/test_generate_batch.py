"""The batch of a backend that has `generate` alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from search import Case, Expand, Search, SearchSteps, Step, solve
from tests.helpers.backends import FakeBackend
from ttc import Branch, InvalidInput, Sampling
from ttc.backend import GenerateBatch


class Noting(FakeBackend):
    """Notes what each call of `generate` was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int, Any, dict[str, Any]]] = []

    def generate(self, branches: Sequence[Branch], max_tokens: Any, **options: Any) -> None:
        self.given.append((len(branches), max_tokens, options))
        super().generate(branches, max_tokens, **options)


def branches(backend: FakeBackend, count: int) -> list[Branch]:
    return backend.fork(backend.root([1]), count)


def test_steps_with_the_same_options_are_one_call_whatever_their_lengths() -> None:
    backend, greedy = Noting(), Sampling(temperature=0)
    batch = GenerateBatch(backend)
    first, second, third = branches(backend, 2), branches(backend, 1), branches(backend, 2)
    batch.add(first, Step(4, ",", ("0",)), greedy)
    batch.add(second, Step(7, (",",), ("0",)), greedy)
    batch.add(third, Step(5), limits=[5, 2])
    assert len(batch) == 5
    assert batch.step() == [*first, *second, *third] and len(batch) == 0
    assert backend.given == [
        (3, [4, 4, 7], {"stop": (",",), "end": ("0",), "sampling": greedy}),
        (2, [5, 2], {"stop": (), "end": (), "sampling": Sampling()}),
    ]


def test_a_branch_that_is_forgotten_decodes_nothing() -> None:
    backend = Noting()
    batch, (left, stays) = GenerateBatch(backend), branches(backend, 2)
    batch.add([left, stays], Step(3))
    batch.withdraw([left])
    assert batch.step() == [stays] and backend.given[0][:2] == (1, 3)


@dataclass(frozen=True)
class Once(Search):
    """One expansion by a step that is given."""

    step: Any = None
    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        return (yield Expand([root], 2, self.step, self.sampling))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            Step(9, statistics=True),
            "Step.statistics=True, and Noting.generate offers no statistics",
        ),
        (Step(9, statistics=1), "Step.statistics=1 is of type int"),
        (Step(9, delimiter=3), "Step.delimiter=3 is of type int"),
    ],
)
def test_a_step_that_cannot_be_made_is_refused_by_name(step: Step, message: str) -> None:
    backend = Noting()
    with pytest.raises(InvalidInput, match=message):
        solve(Once(step=step), problem="1", engine=backend)
    assert not backend.live


def test_a_step_of_a_search_may_end_at_one_of_several_delimiters() -> None:
    backend = Noting()
    result = solve(Once(step=Step(40, (",", "7"))), problem="1", engine=backend)
    assert backend.given[0][2]["stop"] == (",", "7")
    for branch in result.branches:
        assert branch.text[-1] in ",7" or branch.finish_reason or len(branch.generated) == 40
        assert not set(branch.text[:-1]) & set(",7")
