"""Searches of one's own that ask for what cannot be, or return what is no branch."""

from __future__ import annotations

from typing import Any

import pytest

from search import (
    Append,
    Case,
    DiversePrompts,
    Expand,
    Greedy,
    Rate,
    Release,
    SearchSteps,
    Step,
    Vary,
    solve,
)
from tests.helpers.backends import FakeBackend
from ttc import Branch, InvalidInput

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


@pytest.mark.parametrize(
    "fields", [{"phrasings": "{question}"}, {"phrasings": (5,)}, {"hints": None}], ids=str
)
def test_phrasings_and_hints_are_lists_of_texts(fields: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{next(iter(fields))}=.*; give (a list of )?text"):
        DiversePrompts(**fields)
