"""Servers that keep a model's thoughts apart from its texts, as those with a reasoning parser
do."""

from __future__ import annotations

from typing import Any

import pytest

from search import BeamSearch, Greedy, solve
from tests.helpers.models import small
from tests.helpers.servers import Fault, ServedModel, connected
from tests.helpers.tiers import some_quick
from tests.helpers.tokenizers import EOS, Ascii
from ttc import Engine, RemoteError, Result, ThinkingMarks


class Thinker(Ascii):
    """One token per character, of a model whose chat template knows marks."""

    chat_template = "</think>"  # type: ignore[assignment]

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        return "go:"


def says(**fields: Any) -> Fault:
    choice = {"index": 0, "text": "", "finish_reason": "stop", **fields}
    usage = {"prompt_tokens": 3, "completion_tokens": 7}
    return lambda handler, body: handler.answer({"choices": [choice], "usage": usage})


def asked(*faults: Fault, tokenizer: Any = None, ids_out: bool = False, **options: Any) -> Result:
    served = ServedModel(faults=list(faults), ids_out=ids_out, logprobs=0, seeds=False)
    served.stop = "ignored"  # such a server answers with thought and text at once
    served.tokenizer = tokenizer or Thinker()
    with connected(served, concurrency=1) as backend:
        result: Result = solve(Greedy(max_tokens=40), problem="q", engine=backend, **options)
        return result


@pytest.mark.slow
def test_a_thought_that_was_cut_off_has_no_answer() -> None:
    for text in ("", None):
        result = asked(says(text=text, reasoning_content="The answer is 12.", finish_reason="stop"))
        assert result.answer is None and result.best is not None
        assert result.best.text == "<think>The answer is 12."


def test_the_tokens_of_a_reply_hold_its_thought_already() -> None:
    whole = "<think>12</think>18"
    tokens = Thinker().encode(whole)
    result = asked(says(text="18", reasoning_content="12", token_ids=tokens), ids_out=True)
    assert result.answer == "18" and result.best is not None and result.best.text == whole


def test_a_prompt_that_has_begun_the_thought_is_not_begun_again() -> None:
    class Opening(Thinker):
        def apply_chat_template(self, messages: Any, **_: Any) -> str:
            return "go:<think>\n"

    result = asked(says(text="18", reasoning_content="12"), tokenizer=Opening())
    assert result.best is not None and result.best.text == "12</think>18"
    assert result.answer == "18"


def test_a_thought_that_the_tokenizer_has_no_marks_for_is_refused_by_name() -> None:
    with pytest.raises(RemoteError, match="keeps the model's thoughts apart"):
        asked(says(text="18", reasoning_content="12"), tokenizer=Ascii())


@pytest.mark.parametrize(
    ("tokenizer", "field", "own", "text"),
    [
        (Thinker(), "reasoning", None, "<think>12</think>18"),
        (Thinker(), "reasoning_content", ThinkingMarks("((", "))"), "((12))18"),
        (Ascii(), "reasoning_content", ThinkingMarks("((", "))"), "((12))18"),
    ],
)
def test_a_thought_is_put_back_between_the_models_marks_or_the_users(
    tokenizer: Any, field: str, own: ThinkingMarks | None, text: str
) -> None:
    marks = {} if own is None else {"thinking_marks": own}
    result = asked(says(text="18", **{field: "12"}), tokenizer=tokenizer, **marks)
    assert result.best is not None and result.best.text == text
    assert (result.answer, result.best.answer_text) == ("18", "18")
    assert result.best.thought == "12"


@pytest.mark.parametrize("thought", [None, ""])
def test_a_text_that_is_null_beside_a_thought_is_empty(thought: str | None) -> None:
    result = asked(says(text=None, reasoning_content=thought))
    assert result.answer is None and result.error is None


class Opening(Thinker):
    """Its prompt begins a thought; the marks are letters that a random model writes at times."""

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        return f"{messages[-1]['content']}<"


MARKS = ThinkingMarks("<", "P")


@pytest.mark.few(1)
@pytest.mark.parametrize("ways", [{}, {"stop": "named"}])
@pytest.mark.parametrize("limit", some_quick([0, 3, 12, 40], [12]))
def test_limits_of_thoughts_are_those_of_an_engine(limit: int, ways: dict[str, Any]) -> None:
    problems = ["1 + 1", "How many? 7", "a"]
    searches = [
        Greedy(max_tokens=9, thinking_tokens=limit, final="So:"),
        BeamSearch(
            beam_size=1, beam_width=1, step_tokens=4, max_steps=6, thinking_step=5,
            thinking_tokens=limit, temperature=0,
        ),
    ]  # fmt: skip
    engine = Engine(small(context=1024, eos=EOS), Opening())
    served = ServedModel(**ways)
    served.tokenizer = Opening()
    with connected(served) as backend:
        assert not backend.writes_ahead
        for search in searches:
            here, there = (
                solve(search, problem=problems, engine=one, thinking_marks=MARKS, verifier=Equal())
                for one in (engine, backend)
            )
            for mine, theirs in zip(here, there, strict=True):
                assert mine.best is not None and theirs.best is not None
                assert theirs.best.text == mine.best.text
                assert theirs.best.thought == mine.best.thought
                assert theirs.usage.thinking_tokens == mine.usage.thinking_tokens
                if limit:
                    assert 0 < theirs.usage.thinking_tokens <= limit


def test_limits_are_left_out_where_a_server_writes_on() -> None:
    served = ServedModel(stop="ignored")
    served.tokenizer = Opening()
    with connected(served) as backend:
        assert backend.writes_ahead
        result = solve(
            Greedy(max_tokens=9, thinking_tokens=3),
            problem="a",
            engine=backend,
            thinking_marks=MARKS,
        )
        assert result.best is not None and len(result.best.text) <= 9


class Equal:
    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        return [[1.0] for _ in branches]
