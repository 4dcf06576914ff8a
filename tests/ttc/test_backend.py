"""A backend of one's own: what it has from `ttc.Backend`, and how it says what it has not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import Any

import pytest

from search import BestOfN, DiversePrompts, SelfConsistency, TreeOfThoughts, solve
from search.asked_backend import AskedBackend, Desk
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import make_engine
from ttc import Backend, Branch, Engine, InvalidInput, Step, Unsupported
from ttc.backend import GenerateBatch
from ttc.task import Task
from ttc.text.word_tokenizer import WordTokenizer
from verifiers import LLMVerifier, SelfVerifier

ROOT = Path(__file__).parents[2]


class Says(Backend):
    """Goes on with the number of a branch's stream."""

    def __init__(self) -> None:
        self.tokenizer = WordTokenizer()

    def generate(
        self, branches: Sequence[Branch], max_tokens: int | Sequence[int], **options: Any
    ) -> None:
        for branch in branches:
            for token in self.encode(f"The answer is {branch.key % 3}."):
                branch.append(token, nan, nan)
            branch.usage.generated_tokens += 5
            branch.finish_reason = "eos"
            branch.end_step("eos")


class Scores(Says):
    """It knows log-probabilities too."""

    def score(
        self, branches: Sequence[Branch], continuations: Any, *, exit: Any = None, **options: Any
    ) -> Task[list[list[list[float]]]]:
        self.check_no_exit(exit)
        return Task.made([[[-1.0] * len(tokens) for tokens in group] for group in continuations])


@pytest.mark.parametrize(
    ("search", "verifier"),
    [
        (SelfConsistency(n=3), None),
        (DiversePrompts(n=3, hints=(" So", " Then")), SelfVerifier()),
        (BestOfN(n=3), SelfVerifier(fresh=True)),
        (BestOfN(n=3), LLMVerifier()),
    ],
)
def test_with_generate_alone_a_backend_runs_searches(search: Any, verifier: Any) -> None:
    engine = Says() if verifier is None else Scores()
    result = solve(search, problem=["1 + 1"], engine=engine, verifier=verifier)[0]
    assert result.error is None and result.answer in ("0", "1", "2")
    assert result.usage.generated_tokens == 5 * 3
    assert (result.usage.verifier_tokens > 0) == (verifier is not None)


NOTHING = Backend()
HELD = Says().roots([[1]]).result()

LACKING: dict[str, tuple[Callable[[], object], str]] = {
    "generate": (lambda: NOTHING.generate([], 3), "Backend has no generate"),
    "score": (lambda: Says().score(HELD, [[[1]]]).result(), "Says has no score"),
    "exit": (lambda: FakeBackend().score([], [], exit=3).result(), "FakeBackend has no exit"),
    "a verifier that scores": (
        lambda: solve(
            TreeOfThoughts(), problem="1", engine=AskedBackend(Desk()), verifier=SelfVerifier()
        ),
        "SelfVerifier needs log-probabilities of given tokens",
    ),
    "statistics": (
        lambda: GenerateBatch(FakeBackend()).add([], Step(3, statistics=True)),
        "FakeBackend.generate offers no statistics",
    ),
}


@pytest.mark.parametrize("lacking", LACKING)
def test_what_a_backend_cannot_do_is_refused_by_name(lacking: str) -> None:
    call, message = LACKING[lacking]
    with pytest.raises(Unsupported, match=message) as refusal:
        call()
    assert isinstance(refusal.value, InvalidInput)
    assert "; " in str(refusal.value)  # the way out


def test_a_backend_asks_for_what_it_stands_on() -> None:
    """One that has neither `generate` nor a batch says so, rather than asking itself for ever."""
    with pytest.raises(Unsupported, match="has no generate"):
        batch = NOTHING.running_batch()
        batch.add(HELD, Step(3))
        batch.step()


def test_all_backends_are_of_one_class() -> None:
    assert all(issubclass(kind, Backend) for kind in (Engine, AskedBackend))
    assert isinstance(make_engine(), Backend) and make_engine().joins and not FakeBackend().joins

    class Alike:
        """It has all methods, and not the class."""

        def __getattr__(self, name: str) -> Any:
            return getattr(FakeBackend(), name)

    with pytest.raises(InvalidInput, match=r"engine=.* is of type Alike; give a backend"):
        solve(SelfConsistency(), problem="1", engine=Alike())  # type: ignore[call-overload]


def test_few_things_are_asked_what_they_are() -> None:
    """What a backend or a batch can do, it says; only what users write without a class of ours is
    looked at."""
    folders = ("ttc", "search", "verifiers", "experiments")
    sources = [file.read_text() for name in folders for file in (ROOT / name).rglob("*.py")]
    assert sum(text.count("@runtime_checkable\n") for text in sources) <= 4
