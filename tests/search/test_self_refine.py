"""Self-refinement: what is asked, when it stops, and which answer is returned."""

from __future__ import annotations

from typing import Any

import pytest

from search import SelfRefine, solve
from tests.helpers.scripted import Scripted
from ttc import Branch

FEEDBACK, REWRITE = "Right?", "Rewrite."


class Talk(Scripted):
    """Says the given things in turn."""

    def __init__(self, *says: str, **options: Any):
        super().__init__(self.write, **options)
        self.turns, self.prompts = iter(says), list[str]()

    def write(self, branch: Branch) -> str:
        prompt = self.decode(branch.tokens[: branch.prompt_length])
        self.prompts.append(prompt.partition("\nAnswer:")[2])
        return next(self.turns) + "0"


def run(backend: Any, search: SelfRefine | None = None, **options: Any) -> Any:
    search = search or SelfRefine(feedback=FEEDBACK, rewrite=REWRITE)
    result = solve(search, problem="q", engine=backend, **options)
    assert result.error is None and not getattr(backend, "live", None)
    return result


def turn(words: str) -> str:
    return f"\n\nQuestion: {words}\nAnswer:"


def test_the_answer_that_was_confirmed_is_returned() -> None:
    backend = Talk("1", "wrong", "2", "Yes, It is Correct. 3")
    result = run(backend)
    assert result.best.text == "20" and result.answer == "20"
    said = [f"1{turn(FEEDBACK)}", f"wrong{turn(REWRITE)}", f"2{turn(FEEDBACK)}"]
    assert backend.prompts == ["".join(said[:count]) for count in range(4)]


def test_there_are_at_most_four_answers() -> None:
    backend = Talk(*"1a2b3c4")
    assert run(backend).answer == "40" and len(backend.calls) == 7


@pytest.mark.parametrize("critique", ["it is incorrect", "it is not correct", "it is correctable"])
def test_what_only_looks_like_a_confirmation_is_none(critique: str) -> None:
    assert run(Talk("1", critique, "2", "it is correct.")).answer == "20"


def test_a_critique_that_is_cut_short_is_no_confirmation() -> None:
    search = SelfRefine(feedback=FEEDBACK, rewrite=REWRITE, attempts=2, feedback_tokens=8)
    backend = Talk("1", "it is correct", "2")
    assert run(backend, search).answer == "20"  # "it is co"


def test_a_budget_ends_it_with_the_last_whole_answer() -> None:
    for most, answer in ((4, "10"), (8, "20"), (9, "20")):
        result = run(Talk("1", "bad", "2", "bad", "3"), max_tokens=most)
        assert [branch.text for branch in result.branches] == [answer]
        assert result.answer == answer and result.stopped == "max_tokens"


def test_it_ends_where_the_context_has_no_room() -> None:
    backend = Talk("1", "bad", "2", "bad", "3", longest=170)
    assert run(backend).answer == "20"


def test_only_one_branch_and_its_answer_are_held() -> None:
    backend = Talk(*"1a2b3c4")
    run(backend)
    assert max(map(len, backend.held)) == 3
