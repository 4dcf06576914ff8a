"""The place in the user's code that an error came by."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from search import BestOfN, Greedy, solve, solve_each, try_verifier
from search.admission import ProblemAdmission
from search.config import SearchConfig
from search.driver import Driver
from search.options import SolveOptions
from tests.helpers.engines import make_engine
from ttc import InvalidInput, VerifierError
from ttc.results import Problem

OWN = """\
import json
from dataclasses import dataclass

from search import Expand, Search
from ttc import InvalidInput, Sampling, Step


def deeper(text):
    return json.loads(text)  # line 9


@dataclass(frozen=True)
class Fails(Search):
    def run(self, root, case):
        yield Expand([root], 1, Step(3), Sampling())
        return deeper("{")


@dataclass(frozen=True)
class AsksWrongly(Search):
    def run(self, root, case):
        yield Expand([root], 1, Step(3), Sampling())
        yield from self.more(root)

    def more(self, root):
        yield "more"  # line 26


@dataclass(frozen=True)
class StepsWrongly(Search):
    def run(self, root, case):
        yield Expand([root], 1, Step(0), Sampling())  # line 32


class Fair:
    def rate(self, branches, questions, engine):
        return [[0.5] for _ in branches]


class Unrated(Fair):
    def rate(self, branches, questions, engine):
        deeper("{")


class Unpriced(Fair):
    def price(self, branches, questions, engine):
        return deeper("{")


class Kept(Fair):
    def released(self, branches):
        deeper("{")


class OnPurpose(Fair):
    def rate(self, branches, questions, engine):
        raise InvalidInput("this verifier reads no French")


def tool(text):
    return deeper("{")


def extract(text):
    return deeper("{")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("own_parts")
    del sys.modules["own_parts"]


def error_of(search: Any, **options: Any) -> str:
    engine = make_engine(context=160)
    (result,) = solve_each(search, problems=["1 + 1"], engine=engine, **options)
    return str(result.error)


@pytest.mark.parametrize("name", ["Unrated", "Unpriced", "Kept"])
def test_a_verifier_names_its_line(own: Any, name: str) -> None:
    said = error_of(BestOfN(n=2, max_tokens=3), verifier=getattr(own, name)(), max_tokens=99)
    assert said.startswith(f"VerifierError: {name}") and "JSONDecodeError: " in said
    assert said.endswith(" (own_parts.py:9)")


def test_what_is_raised_in_python_has_the_error_as_its_cause(own: Any) -> None:
    with pytest.raises(VerifierError, match=r"\(own_parts\.py:9\)$") as raised:
        try_verifier(own.Unrated(), make_engine(context=160), "1 + 1")
    assert type(raised.value.__cause__).__name__ == "JSONDecodeError"


def test_what_is_said_on_purpose_is_told_as_it_is(own: Any) -> None:
    said = error_of(BestOfN(n=2, max_tokens=3), verifier=own.OnPurpose())
    assert said.endswith("raised InvalidInput: this verifier reads no French")


def test_a_function_that_reads_answers_names_its_line(own: Any) -> None:
    engine = make_engine(context=160)
    with pytest.raises(InvalidInput, match=r"raised JSONDecodeError: .*\(own_parts\.py:9\)$"):
        solve(Greedy(max_tokens=3), problem="1", engine=engine, extract=own.extract)


@pytest.mark.parametrize(
    ("name", "line"), [("Fails", 9), ("AsksWrongly", 26), ("StepsWrongly", 32)]
)
def test_a_search_names_its_line(own: Any, name: str, line: int) -> None:
    """A server's driver goes on with other problems, and a call of Python raises."""
    engine = make_engine(context=160)
    search = getattr(own, name)()
    driver = Driver(engine, ProblemAdmission.of(engine, None, None), contained=True)
    driver.add(Problem("1 + 1"), SearchConfig.of(search, engine, SolveOptions(verifier=own.Fair())))
    results = [progress.result for _, progress in driver.events() if progress.result is not None]
    assert str(results[0].error).endswith(f"(own_parts.py:{line})")
    with pytest.raises(ValueError):  # JSONDecodeError and InvalidInput are
        solve(search, problem="1 + 1", engine=engine, verifier=own.Fair())
