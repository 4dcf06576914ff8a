"""The server over models that think: thoughts and answers apart, whole and streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.helpers.chat_server import served, serving
from tests.helpers.thinking import OPENING, SWITCHED, TURNS, save_qwen3, save_smollm2, thinker
from tests.helpers.thinking import QWEN3 as QWEN3_TEMPLATE
from ttc import Engine

TAGS = ("<think>", "</think>")
R1, QWEN3 = thinker(OPENING, plain=TAGS), thinker(SWITCHED, plain=TAGS)
OLMO3 = thinker(OPENING)  # marks of several tokens
CHANNELS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>")
GPT_OSS = thinker(TURNS, CHANNELS)
HARMONY = (
    "<|channel|>analysis<|message|>12?<|end|><|start|>assistant<|channel|>final<|message|>The "
    "answer is 18."
)
GO: list[Any] = [{"role": "user", "content": "go"}]


def whole(client: openai.OpenAI, **options: Any) -> tuple[str | None, str | None]:
    """(thought, answer) of a reply."""
    asked: Any = {"model": "m", "messages": GO, "max_tokens": 90} | options
    message = client.chat.completions.create(**asked).choices[0].message
    return (message.model_extra or {}).get("reasoning_content"), message.content


def streamed(client: openai.OpenAI, **options: Any) -> tuple[str, str, int]:
    """The same, put together, and in how many pieces they came."""
    asked: Any = {"model": "m", "messages": GO, "max_tokens": 90, "stream": True} | options
    thought, answer, pieces = "", "", 0
    for chunk in client.chat.completions.create(**asked):
        delta = chunk.choices[0].delta
        more = (delta.model_extra or {}).get("reasoning_content") or ""
        assert not (more and answer), "a thought came after the answer"
        assert "think" not in more + (delta.content or "")  # no mark, and no part of one
        thought, answer = thought + more, answer + (delta.content or "")
        pieces += bool(more or delta.content)
    return thought, answer, pieces


@pytest.mark.few
@pytest.mark.parametrize(
    ("tokenizer", "text", "thought", "answer"),
    [
        (R1, "Is it 12?\n</think>\n\nThe answer is 18.", "Is it 12?\n", "\n\nThe answer is 18."),
        (R1, "Is it 12, or", "Is it 12, or", None),
        (QWEN3, "<think>12</think>18", "12", "18"),
        (QWEN3, "The answer is 18.", None, "The answer is 18."),
        (OLMO3, "1 < 2</think>The answer is 18.", "1 < 2", "The answer is 18."),
        (GPT_OSS, HARMONY, "12?", "The answer is 18."),
    ],
    ids=["r1", "r1-cut-off", "qwen3", "qwen3-no-thought", "olmo3", "gpt-oss"],
)
def test_a_thought_is_given_apart_whole_and_streamed(
    tokenizer: Any, text: str, thought: str | None, answer: str | None
) -> None:
    with served([text], tokenizer) as client:
        assert whole(client) == (thought, answer)
        *parts, pieces = streamed(client)
        assert parts == [thought or "", answer or ""] and pieces > 2
        raw = client.completions.create(model="m", prompt="go", max_tokens=90).choices[0].text
        special = text if tokenizer is not GPT_OSS else "analysis12?assistantfinalThe answer is 18."
        assert raw == special  # a completion is the text as it is


def test_a_search_votes_by_answers_and_replies_with_one() -> None:
    said = ["The answer is 3", "The answer is 3", "3, no</think>The answer is 4."]
    with served(said, R1) as client:
        assert whole(client, model="m+self_consistency") == ("3, no", "The answer is 4.")
        assert streamed(client, model="m+self_consistency")[:2] == ("3, no", "The answer is 4.")
    with served(said, R1, thinking_marks=False) as client:
        assert whole(client, model="m+self_consistency") == (None, "The answer is 3")


def test_an_answer_that_is_cut_off_in_the_thought_has_no_content() -> None:
    with served(["Is it 12?</think>18"], R1) as client:
        asked: Any = {"model": "m", "messages": GO, "max_tokens": 5}
        (choice,) = client.chat.completions.create(**asked).choices
        assert (choice.finish_reason, choice.message.content) == ("length", None)
        assert (choice.message.model_extra or {})["reasoning_content"] == "Is it"


def test_an_empty_thought_in_the_prompt_makes_all_content() -> None:
    with served(["The answer is 18."], QWEN3, chat_options={"enable_thinking": False}) as client:
        assert whole(client) == (None, "The answer is 18.")
        assert streamed(client)[:2] == ("", "The answer is 18.")


ECHO = "{{ reasoning_effort | default('none') }}\n"
STRICT = (
    "{% if reasoning_effort is defined and reasoning_effort not in ['none', 'low', 'medium', "
    "'high'] %}{{ raise_exception('no such effort') }}{% endif %}"
)
EFFORTS = ("minimal", "low", "medium", "high", "xhigh")


def prompt_tokens(client: openai.OpenAI, **options: Any) -> int:
    given: Any = {"model": "m", "messages": GO} | options
    usage = client.chat.completions.create(**given).usage
    assert usage is not None
    return int(usage.prompt_tokens)


def test_an_effort_is_given_to_a_chat_template_that_takes_it_in_place_of_the_servers() -> None:
    with served(["18"], thinker(TURNS + ECHO), chat_options={"reasoning_effort": "high"}) as client:
        by_variable: Any = {"extra_body": {"chat_template_kwargs": {"reasoning_effort": "low"}}}
        low = prompt_tokens(client, reasoning_effort="low")
        assert prompt_tokens(client) == low + len("high") - len("low")
        assert prompt_tokens(client, **by_variable) == low
        with pytest.raises(openai.BadRequestError, match="reasoning_effort=high sets") as refused:
            prompt_tokens(client, reasoning_effort="high", **by_variable)
        assert refused.value.param == "reasoning_effort"


@pytest.mark.parametrize(("template", "taken"), [(ECHO, EFFORTS), (STRICT + ECHO, EFFORTS[1:4])])
def test_efforts_from_none_to_xhigh_reach_the_chat_template(
    template: str, taken: tuple[str, ...]
) -> None:
    """Where it refuses one, the nearest that it takes."""
    nearest = {"minimal": "low", "xhigh": "high"}
    with served(["18"], thinker(TURNS + template)) as client:
        plain = prompt_tokens(client) - len("none")
        assert prompt_tokens(client, reasoning_effort="none") == plain + len("none")
        for effort in EFFORTS:
            words = effort if effort in taken else nearest[effort]
            assert prompt_tokens(client, reasoning_effort=effort) == plain + len(words)


def test_an_earlier_reply_may_be_sent_back_with_its_thought() -> None:
    earlier = {"role": "assistant", "content": "18", "reasoning_content": "12?"}
    with served(["</think>19"], R1) as client:
        assert whole(client, messages=[*GO, earlier, *GO]) == (None, "19")
        # as a reply has it
        cut_off = {"role": "assistant", "content": None, "reasoning_content": "12?"}
        assert whole(client, messages=[*GO, cut_off, *GO]) == (None, "19")
        with pytest.raises(openai.BadRequestError, match="the user's content is null"):
            whole(client, messages=[{"role": "user", "content": None}])


@pytest.mark.parametrize("kind", ["qwen3", pytest.param("smollm2", marks=pytest.mark.slow)])
def test_a_thinking_model_on_the_server(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder = save_qwen3(folder, QWEN3_TEMPLATE) if kind == "qwen3" else save_smollm2(folder)
    engine = Engine.from_pretrained(folder, dtype="float32")
    with serving(engine) as client:
        asked: dict[str, Any] = {"model": "m", "messages": GO, "seed": 1, "max_tokens": 8}

        def reply(**options: Any) -> Any:
            return client.chat.completions.create(**asked, extra_body=options)

        budgeted = reply(thinking_token_budget=6)
        message = budgeted.choices[0].message
        if kind == "smollm2":  # the prompt begins the thought
            assert message.reasoning_content and message.content.startswith("\n\nFinal Answer:")
            assert budgeted.usage.completion_tokens_details.reasoning_tokens == 6
            assert budgeted.usage.completion_tokens <= 14
            within = reply()  # max_tokens counts thoughts too
            assert within.choices[0].message.content is None
            assert within.usage.completion_tokens_details.reasoning_tokens == 8
        else:
            off = reply(reasoning_effort="none")
            assert getattr(off.choices[0].message, "reasoning_content", None) is None
            # an effort turns thinking on where the template knows no more than that
            for effort in ("minimal", "low", "medium", "high", "xhigh"):
                assert (
                    reply(reasoning_effort=effort).choices == reply(thinking_token_budget=8).choices
                )
            with pytest.raises(openai.BadRequestError, match="thinking_token_budget=201"):
                reply(thinking_token_budget=201)
