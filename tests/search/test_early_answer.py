"""Early answers: when a chain is asked, what for, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from search import EarlyAnswer, solve
from tests.helpers.backends import Dictated
from tests.helpers.scripted import Scores
from tests.helpers.thinking import OPENING, Thinking, thinker
from ttc import Branch, InvalidInput
from ttc.results import Result

TAGS = ("<think>", "</think>")
THOUGHTS = ["Two and two.\n\n", "That is four.\n\n", "Let me check.\n\n", "Yes.</think>", "four"]


def asked(score: Callable[[Branch], float], **settings: Any) -> tuple[Result, list[str]]:
    """A search over a model that thinks, and the texts that were rated."""
    rated: list[str] = []

    def rate(branch: Branch) -> float:
        rated.append(branch.text)
        return score(branch)

    def says(branch: Branch) -> str:
        return "4" if "Final" in branch.text else "".join(THOUGHTS)[len(branch.text) :]

    backend = Thinking(says, thinker(OPENING, plain=TAGS))
    search = EarlyAnswer(**settings)
    result = solve(search, problem="q", engine=backend, verifier=Scores(rate))
    assert result.error is None and not backend.live
    return result, rated


def test_the_chain_is_asked_as_soon_as_the_probe_is_sure() -> None:
    result, rated = asked(lambda branch: 0.9 if "four" in branch.text else 0.2)
    assert rated == [THOUGHTS[0], THOUGHTS[0] + THOUGHTS[1]]
    assert result.answer == "4" and result.best is not None
    assert result.best.text == rated[-1] + "</think>\n\nFinal Answer:4"
    assert result.best.thought == rated[-1]
    tokens = len(rated[-1]) + len("4") + 1
    assert result.usage.generated_tokens == tokens


def test_a_probe_that_is_never_sure_lets_the_chain_end_by_itself() -> None:
    result, rated = asked(lambda branch: 0.84)
    assert len(rated) == 4 and result.best is not None
    assert result.best.text == "".join(THOUGHTS) and result.best.finish_reason == "eos"


def test_after_the_last_step_the_answer_is_asked_for() -> None:
    result, rated = asked(lambda branch: 0.0, max_steps=1)
    assert len(rated) == 1 and result.best is not None
    assert result.best.text == THOUGHTS[0] + "</think>\n\nFinal Answer:4"


def test_a_model_without_thoughts_is_asked_without_a_mark() -> None:
    backend = Dictated(lambda branch: "7" if "Final" in branch.text else "so and so " * 9)
    search = EarlyAnswer(step_tokens=8, threshold=0.5)
    result = solve(search, problem="q", engine=backend, verifier=Scores(lambda branch: 0.5))
    assert result.best is not None and result.best.text == "so and s\n\nFinal Answer:7"


def test_a_budget_ends_it_with_what_there_is() -> None:
    backend = Dictated(lambda branch: "so and so " * 9)
    result = solve(
        EarlyAnswer(step_tokens=8), problem="q", engine=backend,
        verifier=Scores(lambda branch: 0.0), max_generated_tokens=20
    )  # fmt: skip
    assert result.stopped == "max_generated_tokens" and result.usage.generated_tokens == 20
    assert result.best is not None and not backend.live


def test_settings_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidInput, match="threshold='high' is of type str"):
        EarlyAnswer(threshold="high")  # type: ignore[arg-type]
