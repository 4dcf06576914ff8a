"""Searches and other code of one's own that ask for what cannot be, return what is no branch, or
end the process, which is a failure as any error is."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from search import (
    Append,
    BestOfN,
    Case,
    Expand,
    Greedy,
    Rate,
    Release,
    Search,
    SearchSteps,
    SelfConsistency,
    Step,
    Vary,
    solve,
)
from tests.helpers.backends import FakeBackend
from tests.helpers.scripted import Scores
from ttc import Branch, InvalidInput, Problem
from ttc.errors import TTCError

WRONG_REQUESTS: list[tuple[Any, str]] = [
    (lambda root: "expand", "what the search yielded='expand' is of type str; give Vary, Expand,"),
    (lambda root: None, "what the search yielded=None is of type NoneType"),
    (lambda root: Expand, "what the search yielded=Expand is a class; give an object"),
    (lambda root: Expand(root, 2, Step(3)), "Expand.branches=.* Branch; give a list of branches"),
    (lambda root: Expand([None], 2, Step(3)), "one of Expand.branches=None is of type NoneType"),
    (lambda root: Expand([root], 2, 5), "Expand.step=5 is of type int; give a Step"),
    (lambda root: Expand([root], 2, Step(0)), "Step.max_tokens=0 must be at least 1"),
    (lambda root: Expand([root], 2, Step(3), 0.5), "Expand.sampling=0.5 .*; give a ttc.Sampling"),
    (lambda root: Append([root], 5), "Append.text=5 .* give a text, or one for each branch"),
    (lambda root: Append([root], [None]), "Append.text=.None. is of type list; give a text, or"),
    (lambda root: Rate([root], "max"), "Rate.aggregation='max' is unknown; use one of min, prod"),
    (lambda root: Vary(root, -1), "Vary.n=-1 must be at least 0"),
    (lambda root: (Release([root]), Expand([root], 1, Step(2))), "expanded .* had released it"),
]


@pytest.mark.parametrize(("request_of", "message"), WRONG_REQUESTS)
def test_what_is_no_request_is_refused_by_name(request_of: Any, message: str) -> None:
    class Own(Greedy):
        def run(self, root: Branch, case: Case) -> SearchSteps:
            requests = request_of(root)
            yield from requests if isinstance(requests, tuple) else (requests,)
            return []

    backend = FakeBackend()
    with pytest.raises(InvalidInput, match=message):
        solve(Own(), problem="q", engine=backend)
    assert not backend.live


@pytest.mark.parametrize("returned", [None, 3, [None]])
def test_a_search_that_returns_no_branches_is_told_what_it_returned(returned: Any) -> None:
    class Own(Greedy):
        def run(self, root: Branch, case: Case) -> SearchSteps:
            yield Expand([root], 1, Step(3))
            return returned

    backend = FakeBackend()
    with pytest.raises(InvalidInput, match=r"what the search returned=.*give"):
        solve(Own(), problem="q", engine=backend)
    assert not backend.live


def test_a_search_that_yields_nothing_is_told_to_be_a_generator() -> None:
    class Own(Greedy):
        def run(self, root: Branch, case: Case) -> SearchSteps:
            return [root]  # type: ignore[return-value]

    with pytest.raises(InvalidInput, match=r"Own\.run gave a list, and must be a generator"):
        solve(Own(), problem="q", engine=FakeBackend())


# ---------------------------------------------------------------- code that ends the process


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


def exits(*given: Any) -> Any:
    sys.exit(0)


def test_a_verifier_that_exits_is_named() -> None:
    search = BestOfN(n=2)
    result = solve(search, problem="1 + 1", engine=FakeBackend(), verifier=Scores(exits))
    assert str(result.error).startswith("VerifierError: Scores raised SystemExit: 0 (")
    assert "test_own_searches.py" in str(result.error)


@pytest.mark.parametrize("search", [ExitsAtOnce(n=2), ExitsBetween(n=2), ExitsAtItsChoice(n=2)])
def test_a_search_that_exits_raises_an_error_with_its_line(search: Search) -> None:
    with pytest.raises(TTCError, match=r"raised SystemExit: 0 \(.*test_own_searches.py:\d+\)"):
        solve(search, problem=Problem("1 + 1", "a"), engine=FakeBackend())


def test_a_reader_of_answers_that_exits_raises_an_error() -> None:
    with pytest.raises(InvalidInput, match="extract raised SystemExit: 0, on the text"):
        solve(SelfConsistency(n=2), problem="1 + 1", engine=FakeBackend(), extract=exits)
