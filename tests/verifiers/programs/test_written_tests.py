"""Programs rated by tests that the model writes, and by how they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from search import BestOfN, solve
from tests.helpers.scripted import Scripted
from ttc import InvalidInput, Problem
from ttc.branch import Branch
from ttc.execution.code_tests import CallTest
from ttc.execution.sandbox import protections
from ttc.task import Task, all_of
from verifiers import CodeT, MBRExec, SStar
from verifiers.programs.written_tests import Agreement

pytestmark = pytest.mark.skipif(not protections(), reason="programs cannot be confined here")

TWICE = "def f(x):\n    return 2 * x"
ADDED = "def f(x):\n    return x + x"
SQUARE = "def f(x):\n    return x ** 2"
FAILS = "def f(x):\n    return nothing"
TESTS = [CallTest("f", (2,), 4), CallTest("f", (3,), 6), CallTest("f", (4,), 16)]


def test_codet_rates_a_group_by_its_programs_times_its_tests() -> None:
    """TWICE and ADDED pass tests 1 and 2, SQUARE 1 and 3, FAILS none: 2 x 2, 1 x 2 and 1 x 0 of
    4 x 3."""
    scores = all_of(CodeT().agreement([TWICE, SQUARE, ADDED, FAILS], TESTS))
    assert scores == [4 / 12, 2 / 12, 4 / 12, 0.0]
    assert all_of(CodeT().agreement([TWICE, SQUARE], [])) == [0.0, 0.0]
    assert all_of(CodeT().agreement([], TESTS)) == []


def test_mbr_exec_rates_by_the_share_of_others_with_the_same_outputs() -> None:
    scores = all_of(MBRExec().agreement([TWICE, SQUARE, ADDED, FAILS], TESTS))
    assert scores == [1 / 3, 0.0, 1 / 3, 0.0]  # what the tests expect is not looked at
    assert all_of(MBRExec().agreement([TWICE, SQUARE], TESTS[:1])) == [1.0, 1.0]
    assert all_of(MBRExec().agreement([TWICE], TESTS)) == [1.0]
    assert all_of(MBRExec().agreement([FAILS], TESTS)) == [0.0]


class Writes(Scripted):
    """A backend whose side branches write tests."""

    def __init__(self, programs: Sequence[str], tests: str):
        super().__init__(self._says, longest=2000)
        self.programs, self.tests, self.asked = programs, tests, list[str]()
        self._sides = set[int]()

    def _says(self, branch: Branch) -> str:
        if branch.parent is not None and branch.parent.root_id in self._sides:
            return self.tests + "0"
        return f"```\n{self.programs[branch.path[-1]]}\n```0"

    def side_branches(self, *asked: Any) -> Task[list[Branch]]:
        task = super().side_branches(*asked)
        self.asked += [self.decode(branch.tokens) for branch in task.branches]
        self._sides |= {branch.root_id for branch in task.branches}
        return task


@pytest.mark.parametrize(("kind", "best"), [(CodeT, TWICE), (MBRExec, TWICE)])
def test_a_search_with_tests_that_the_model_writes(kind: type[Agreement], best: str) -> None:
    tests = (
        "Tests:\nassert f(2) == 4\nassert f(3) == 6\nassert f(3) == 6\nassert g(1) == 1\nassert f("
    )
    backend = Writes([SQUARE, TWICE, ADDED, "x"], tests)
    verifier = kind(max_tokens=120)
    result = solve(
        BestOfN(n=4, max_tokens=80),
        problem=Problem("Write f, which doubles."),
        engine=backend,
        verifier=verifier,
        answer_kind="code",
    )
    assert result.answer == best and result.error is None
    assert len(backend.asked) == 1 and "different tests of the function f" in backend.asked[0]
    assert result.usage.verifier_tokens >= len(tests)
    expected = {CodeT: [4 / 8, 4 / 8, 1 / 8, 0.0], MBRExec: [1 / 3, 1 / 3, 0.0, 0.0]}[kind]
    assert [branch.score for branch in result.branches] == pytest.approx(expected)
    assert not backend.live


class Judges(Writes):
    """A backend that also says which of two outputs is right: the one that doubles 5."""

    def _says(self, branch: Branch) -> str:
        asked = self.asked[-1] if self.asked else ""
        if branch.parent is not None and branch.parent.root_id in self._sides and "A:" in asked:
            return "```\nf(2)\nprint(f(5))\n```0"
        return super()._says(branch)

    def score(
        self, branches: Sequence[Branch], continuations: Any, **options: Any
    ) -> Task[list[list[list[float]]]]:
        rows = []
        for branch, words in zip(branches, continuations, strict=True):
            first = "program A gives 10," in self.decode(branch.tokens)
            likely = [self.decode(word).strip() == ("A" if first else "B") for word in words]
            rows.append([[0.0 if right else -5.0] for right in likely])
        return Task.made(rows)


def test_s_star_lets_the_model_choose_between_outputs_that_differ() -> None:
    backend = Judges([SQUARE, TWICE, ADDED, FAILS], "assert f(2) == 4\nassert f(3) == 0")
    about = {"shown_tests": ["assert f(0) == 0"]}
    result = solve(
        BestOfN(n=4, max_tokens=80),
        problem=Problem("Write f, which doubles.", metadata=about),
        engine=backend,
        verifier=SStar(max_tokens=60),
        answer_kind="code",
    )
    scores = {str(branch.path): branch.score for branch in result.branches}
    assert result.error is None and scores == {"(0,)": 0.5, "(1,)": 1.0, "(2,)": 1.0, "(3,)": 0.0}
    judged = [asked for asked in backend.asked if "Which one is right" in asked]
    assert len(judged) == 2  # both orders
    assert "For the call f(5) program A gives 10, and program B gives 25." in judged[0]
    assert not backend.live


@pytest.mark.parametrize(
    "setting",
    [{"tests": 0}, {"samples": 0}, {"max_tokens": 0}, {"temperature": -1}, {"time_s": -1}],
)
def test_wrong_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        MBRExec(**setting)
    with pytest.raises(InvalidInput, match="groups"):
        SStar(groups=1)
