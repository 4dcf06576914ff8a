"""Searches that give branches a text, as it is or as a turn of a chat, and go on from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from search import Append, Case, Expand, Search, SearchSteps, Step, solve
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import make_engine
from tests.helpers.tokenizers import Letters
from ttc import Branch, ContextExceeded
from ttc.text.prompt import PromptTemplate


@dataclass(frozen=True)
class Again(Search):
    """Samples that are then given a text."""

    append: Any = None
    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        first = yield Expand([root], 12, Step(9, end=case.end), self.sampling)
        children = yield self.append(first)
        assert [b.parent for b in children] == first and not any(b.finished for b in children)
        return [b for pair in zip(first, children, strict=True) for b in pair]


def before_and_after(append: Any, **options: Any) -> list[tuple[Any, str]]:
    """Each branch, and what stands after its prompt once it was given a text."""
    backend = FakeBackend()
    backend.tokenizer = options.pop("tokenizer", backend.tokenizer)
    result = solve(Again(append=append), problem=["q"], engine=backend, **options)[0]
    assert result.error is None and not backend.live
    branches = sorted(result.branches, key=lambda branch: branch.path)
    assert all(len(b.logprobs) == len(b.tokens) - b.prompt_length for b in branches)
    return [
        (before, Letters().decode(after.tokens[before.prompt_length :]))
        for before, after in zip(branches[::2], branches[1::2], strict=True)
    ]


class Chat(Letters):
    """A chat template whose turns end with a zero, as the backend's answers do."""

    chat_template = "turns"

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"{message['role'][0]}:{message['content']}0" for message in messages) + "a:"


@pytest.mark.parametrize(
    ("tokenizer", "turn"), [(Chat(), "0u:why?0a:"), (Letters(), "\n\nQuestion: why?\nAnswer:")]
)
def test_a_turn_is_written_as_the_template_does_with_one_end_before_it(
    tokenizer: Any, turn: str
) -> None:
    pairs = before_and_after(lambda b: Append(b, "why?", turn=True), tokenizer=tokenizer)
    assert {before.finish_reason for before, _ in pairs} == {"eos", None}
    for before, said in pairs:
        assert said == before.text.removesuffix("0" if before.finish_reason else "") + turn


def test_appended_text_takes_the_place_of_an_end_or_of_the_dropped_text() -> None:
    pairs = before_and_after(lambda branches: Append(branches, "Wait", drop=","), end=[","])
    assert {before.finish_reason for before, _ in pairs} == {"eos", "end", None}
    pairs += before_and_after(lambda branches: Append(branches, "Wait"))
    for before, said in pairs:
        kept = before.text[:-1] if before.finish_reason else before.text
        assert said == kept + "Wait" and not kept.endswith("0")


def test_no_more_than_one_token_is_taken_back() -> None:
    def error(end: tuple[str, ...] = (), **options: Any) -> str | None:
        search = Again(append=lambda branches: Append(branches, "Wait", **options))
        return solve(search, problem=["0"], engine=FakeBackend("9,"), end=end)[0].error

    assert error(drop=",0") is None
    assert "drop='9,' is more than the last token" in str(error(("9,",), drop="9,"))
    assert "leave turn out" in str(error(turn=True, drop=","))


@pytest.mark.parametrize("engine", [FakeBackend(), make_engine(context=220)])
def test_after_a_turn_the_new_answer_stands_alone(engine: Any) -> None:
    seen = list[Branch]()

    class Asks(Again):
        def run(self, root: Branch, case: Case) -> SearchSteps:
            first = yield Expand([root], 2, Step(5), self.sampling)
            told = yield Append(first, "Sure?", turn=True)
            seen.extend([*first, *told])
            return (yield Expand(told, 1, Step(6), self.sampling))

    result = solve(Asks(), problem="1 + 1", engine=engine)
    first, told = seen[:2], seen[2:]
    for before, asked in zip(first, told, strict=True):
        assert (asked.text, asked.steps, asked.generated, asked.logprobs) == ("", [], [], [])
        whole = engine.decode(asked.tokens)
        assert before.text.rstrip("0") in whole and whole.count("Sure?") == 1
    for branch in result.branches:
        assert len(branch.generated) == len(branch.logprobs) <= 6 and branch.steps == [branch.text]
        assert branch.tokens[: branch.prompt_length] in [asked.tokens for asked in told]


@dataclass(frozen=True)
class Longer(Search):
    """Gives a text to a branch; where that is refused, to a shorter one, if it is `careful`."""

    careful: bool = True
    text: str = "x"
    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        (first,) = yield Expand([root], 1, Step(3), self.sampling)
        try:
            (told,) = yield Append([first], self.text)
        except ContextExceeded:
            if not self.careful:
                raise
            (told,) = yield Append([first], "short")
        return (yield Expand([told], 1, Step(2), self.sampling))


@pytest.mark.parametrize(
    "make", [lambda: FakeBackend("123456789", 200), lambda: make_engine(context=200)]
)
def test_a_text_with_no_room_is_refused_to_its_problem_alone(make: Any) -> None:
    questions = ["7", "7 + 7 + 7"]
    room = 200 - 3 - len(PromptTemplate().tokens(questions[0], Letters()))
    for careful in (True, False):
        engine = make()
        search = Longer(careful=careful, text="y" * (room - 1))
        short, long = solve(search, problem=questions, engine=engine)
        assert short.error is None and "y" * (room - 1) in short.best.text
        if careful:
            assert long.error is None and "short" in long.best.text
        else:
            assert long.error.startswith("ContextExceeded: ")
        assert not getattr(engine, "live", None)
