"""Budget forcing: thinking that is made longer, and thinking that is made to end."""

from __future__ import annotations

from typing import Any

from search import BudgetForcing, solve
from tests.helpers.scripted import Scripted
from ttc import Branch


class Thought(Scripted):
    """Says the given things in turn; "]" ends a thought, a 0 all."""

    def __init__(self, *says: str, **options: Any):
        super().__init__(lambda branch: next(self.turns), **options)
        self.turns, self.limits = iter(says), list[int]()

    def write_step(self, branch: Branch, limit: int, *ends: Any) -> None:
        self.limits.append(limit)
        super().write_step(branch, limit, *ends)


def run(backend: Any, search: BudgetForcing, **options: Any) -> Any:
    result = solve(search, problem="q", engine=backend, extract=lambda text: text, **options)
    assert not getattr(backend, "live", None)
    return result


def forcing(**settings: Any) -> BudgetForcing:
    usual = {"end_of_thinking": "]", "thinking_tokens": 20, "answer_tokens": 3}
    return BudgetForcing(**usual | settings)


def test_the_end_of_thinking_gives_way_to_wait() -> None:
    backend = Thought("abc]", "de]", "fg]", "h0")
    result = run(backend, forcing(waits=2))
    assert result.answer == "abcWaitdeWaitfg]h0"
    # one budget for all thinking, the ends that were taken back included
    assert backend.limits == [20, 16, 13, 3]
    assert result.usage.prompt_tokens == 2 * len("Wait")
    assert result.usage.generated_tokens == 4 + 3 + 3 + 2


def test_an_end_of_the_sequence_is_an_end_of_thinking_too() -> None:
    assert run(Thought("abc0", "de0"), forcing(waits=1)).answer == "abcWaitde0"
    assert run(Thought("abc0", "de0"), forcing(waits=1, end_of_thinking="")).answer == "abcWaitde0"


def test_at_the_limit_the_answer_is_asked_for() -> None:
    backend = Thought("abcd", "e0")
    result = run(backend, forcing(thinking_tokens=4))
    assert result.answer == "abcd]\n\nFinal Answer:e0"
    assert result.usage.prompt_tokens == len("]\n\nFinal Answer:")
    unmarked = run(Thought("abcd", "e0"), forcing(thinking_tokens=4, end_of_thinking=""))
    assert unmarked.answer == "abcd\n\nFinal Answer:e0"


def test_nothing_waits_after_a_limit() -> None:
    assert "Wait" not in str(run(Thought("abcd", "e0"), forcing(thinking_tokens=4, waits=5)).answer)
    result = run(Thought("ab]", "c", "d0"), forcing(thinking_tokens=4, waits=5))
    assert result.answer == "abWaitc]\n\nFinal Answer:d0"


def test_thinking_that_ends_with_its_last_token_is_left_alone() -> None:
    assert run(Thought("abc]", "d0"), forcing(thinking_tokens=4)).answer == "abc]d0"


def test_no_waits_leave_the_model_alone() -> None:
    assert run(Thought("ab]", "c0"), forcing(waits=0)).answer == "ab]c0"
    assert run(Thought("ab0"), forcing(waits=0)).answer == "ab0"


def test_a_budget_ends_it_with_what_there_is() -> None:
    answers = {2: "ab]\n\nFinal Answer:", 3: "ab]", 4: "ab]c", 5: "ab]c0"}
    for most, answer in answers.items():
        result = run(Thought("ab]", "c0"), forcing(waits=0), max_tokens=most)
        assert result.answer == answer and (result.stopped == "max_tokens") == (most < 5)


def test_a_full_context_ends_it_with_what_there_is() -> None:
    backend = Thought("abcdef]", "x0", longest=20)
    result = run(backend, forcing())
    assert result.error is None and result.answer == "abcdef]"


def test_an_end_that_cannot_be_taken_back_is_named() -> None:
    (result,) = solve(forcing(end_of_thinking="</t>"), problem=["q"], engine=Thought("a</t>"))
    assert result.error is not None and "drop='</t>' is more than the last token" in result.error
