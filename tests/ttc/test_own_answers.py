"""Backends and memory policies of one's own whose methods are missing or give what they must not:
refused with the class and the method, and never an error from within."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import pytest

from search import Append, Case, Expand, Rate, Search, SearchSteps, Step, Vary, solve
from tests.helpers.engines import make_engine
from ttc import Backend, Branch, InvalidInput
from ttc.attention.reader import Fetch
from ttc.backend import Batch
from ttc.errors import VerifierError
from ttc.residency.offloading import Offloading
from ttc.task import Task
from ttc.text.word_tokenizer import WordTokenizer
from verifiers import SelfVerifier


class Coin(Backend):
    tokenizer: Any = WordTokenizer()

    def generate(self, branches: Sequence[Branch], max_tokens: Any, **options: Any) -> None:
        for branch in branches:
            for token in self.encode("The answer is 4."):
                branch.append(token, nan, nan)
            branch.finish_reason = "eos"
            branch.end_step("eos")

    def score(self, branches: Any, continuations: Any, **options: Any) -> Task[Any]:
        return Task.made([[[-1.0] * len(one) for one in group] for group in continuations])


class Everything(Search):
    """Asks a backend for all that a search can."""

    def run(self, root: Branch, case: Case) -> SearchSteps:
        varied = yield Vary(root, 2)
        children = yield Expand([root, *varied], 2, Step(9), self.sampling)
        yield Rate(children)
        again = yield Append(children, "Sure?")
        ends = yield Expand(again, 1, Step(9), self.sampling)
        yield Rate(ends)
        return ends


class Waits(Batch):
    """Holds branches, and does nothing for them."""

    def __init__(self) -> None:
        self.held: list[Branch] = []

    def add(self, branches: Sequence[Branch], *given: Any) -> None:
        self.held += branches

    def step(self) -> list[Branch]:
        held, self.held = self.held, []
        return held

    def close(self) -> None:
        pass

    def __len__(self) -> int:
        return len(self.held)


class Forgets(Waits):
    def step(self) -> list[Branch]:
        self.held.clear()
        return []


class Nothing(Waits):
    def step(self) -> Any:
        self.held.clear()


def solved(**own: Any) -> Any:
    backend = type("Mine", (Coin,), own)()
    result = solve(Everything(), problem="2 + 2?", engine=backend, verifier=SelfVerifier())
    if result.error is not None:  # told in the result, as it is this problem's
        raise VerifierError(result.error)
    return result


def test_the_backend_that_is_changed_here_is_one() -> None:
    assert solved().answer == "4"


def gives(value: Any) -> Callable[..., Any]:
    return lambda self, *given, **named: value


METHODS = (
    "roots",
    "new_branch",
    "variants",
    "fork",
    "extend",
    "score",
    "running_batch",
    "encode",
    "decode",
    "of_branch",
)


@pytest.mark.parametrize("value", [None, 3, {}])
@pytest.mark.parametrize("method", METHODS)
def test_a_method_of_a_backend_that_gives_something_else_is_named(method: str, value: Any) -> None:
    with pytest.raises((InvalidInput, VerifierError), match=rf"Mine\.{method} gave .*; give a"):
        solved(**{method: gives(value)})


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("roots", []),
        ("variants", []),
        ("extend", []),
        ("fork", []),
        ("roots", Task.made([], [])),
        ("roots", Task.made(None)),
        ("variants", Task.made([], [])),
        ("score", Task.made([])),
        ("score", Task.made(None)),
        ("score", Task.made([[]] * 6)),
    ],
)
def test_too_few_answers_are_told(method: str, value: Any) -> None:
    with pytest.raises((InvalidInput, VerifierError), match=rf"Mine\.{method} gave .*; give a"):
        solved(**{method: gives(value)})


def leaves_first(self: Any, branches: Sequence[Branch], max_tokens: Any, **options: Any) -> None:
    Coin.generate(self, branches[1:], max_tokens)


def ends_none(self: Any, branches: Sequence[Branch], max_tokens: Any, **options: Any) -> None:
    for branch in branches:
        branch.append(3, nan, nan)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"tokenizer": None}, r"Mine\.tokenizer=None .*give one with `encode` and `decode`"),
        ({"tokenizer": "gpt2"}, r"Mine\.tokenizer='gpt2' .*give one with"),
        ({"generate": gives(None)}, "Mine has left Branch.* without an end of its step; call"),
        ({"generate": ends_none}, "Mine has left Branch.* without an end of its step; call"),
        ({"generate": leaves_first}, "Mine has left Branch.* without an end of its step; call"),
        ({"generate": lambda self, branches, count: None}, r"Mine\.generate: .*'stop'; take \("),
        ({"running_batch": lambda self, rows=None: Waits()}, "Mine has left Branch.*end_step"),
        ({"running_batch": lambda self, rows=None: Forgets()}, r"Forgets\.step has not returned 6"),
        ({"running_batch": lambda self, rows=None: Nothing()}, "a batch of Mine gave=None"),
    ],
)
def test_a_backend_that_writes_wrongly_is_named(own: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        solved(**own)


def test_a_backend_without_a_tokenizer_is_named() -> None:
    class Bare(Backend):
        generate = Coin.generate

    with pytest.raises(InvalidInput, match=r"Bare\.tokenizer=None"):
        solve(Everything(), problem="q", engine=Bare(), verifier=SelfVerifier())


# ---------------------------------------------------------------- a memory policy


def decoded(**own: Any) -> None:
    policy: Any = type("Mine", (Offloading,), own)
    engine = make_engine(layers=3, memory=policy(8 / 2**20, block_tokens=8))
    branches = engine.fork(engine.root(list(range(1, 41))), 4)
    engine.generate(branches, 16)
    engine.generate(branches[::2], 7)


def test_the_policy_that_is_changed_here_is_one() -> None:
    decoded()


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("order", gives(None)),
        ("order", gives("all")),
        ("make_room", gives(None)),
        ("read", gives(None)),
        ("read", gives([])),
        ("read", gives([None])),
        ("read", lambda self, layer, reads, absent: [Fetch(layer + 1, slice(None), absent)]),
        ("read", lambda self, layer, reads, absent: [Fetch(layer, slice(None), absent[1:])]),
        ("read", lambda self, layer, reads, absent: [Fetch(layer, slice(None), (*absent, 99))]),
    ],
)
def test_a_method_of_a_policy_that_gives_something_else_is_named(method: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"Mine\.{method} gave .*; give "):
        decoded(**{method: value})
