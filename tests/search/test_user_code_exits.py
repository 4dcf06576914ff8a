"""Code of a user's that ends the process by sys.exit has failed, as if it had raised an error."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from search import BestOfN, Search, SelfConsistency, solve
from tests.helpers.backends import FakeBackend
from ttc.errors import InvalidInput, TTCError
from ttc.results import Problem


class ExitingVerifier:
    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        sys.exit(0)


class ExitsAtOnce(SelfConsistency):
    def run(self, root: Any, case: Any) -> Any:
        sys.exit(0)


class ExitsBetween(SelfConsistency):
    def run(self, root: Any, case: Any) -> Any:
        yield from super().run(root, case)
        sys.exit(0)


class ExitsAtItsChoice(SelfConsistency):
    def choose(self, candidates: Any, extract: Any) -> Any:
        sys.exit(0)


def exits(text: str) -> str | None:
    sys.exit(0)


def test_a_verifier_that_exits_is_named() -> None:
    search = BestOfN(n=2)
    result = solve(search, problem="1 + 1", engine=FakeBackend(), verifier=ExitingVerifier())
    assert result.error is not None
    assert result.error.startswith("VerifierError: ExitingVerifier raised SystemExit: 0 (")
    assert "test_user_code_exits.py" in result.error


@pytest.mark.parametrize("search", [ExitsAtOnce(n=2), ExitsBetween(n=2), ExitsAtItsChoice(n=2)])
def test_a_search_that_exits_raises_an_error_with_its_line(search: Search) -> None:
    with pytest.raises(TTCError, match=r"raised SystemExit: 0 \(.*test_user_code_exits.py:\d+\)"):
        solve(search, problem=Problem("1 + 1", "a"), engine=FakeBackend())


def test_a_reader_of_answers_that_exits_raises_an_error() -> None:
    with pytest.raises(InvalidInput, match="extract raised SystemExit: 0, on the text"):
        solve(SelfConsistency(n=2), problem="1 + 1", engine=FakeBackend(), extract=exits)
