"""Prompts that other programs have made."""

from __future__ import annotations

import pytest

from experiments.integrations.solver import Verbatim
from tests.helpers.chats import CHATS, QUESTION, WORDS


@pytest.mark.parametrize("name", ["llama_3", "zephyr", "glm_4", "smollm_2"])
def test_a_prompt_that_a_chat_template_has_written_gets_no_other_special_tokens(name: str) -> None:
    chat = CHATS[name]
    whole = chat.ids(chat.prompt)
    assert Verbatim(chat_turns=True).tokens(chat.prompt, chat.tokenizer) == whole
    assert Verbatim(chat_turns=True, keep=3).tokens(chat.prompt, chat.tokenizer) == whole[-3:]
    raw = Verbatim().tokens(QUESTION, chat.tokenizer)
    assert (
        raw
        == chat.tokenizer(QUESTION)["input_ids"]
        == [*chat.ids("".join(chat.before)), *chat.ids(QUESTION)]
    )


@pytest.mark.parametrize("name", ["llama_3", "zephyr", "glm_4", "smollm_2"])
def test_a_further_turn_goes_through_the_template_that_the_prompt_went_through(name: str) -> None:
    chat = CHATS[name]
    given = chat.ids(chat.prompt + chat.said)
    template = Verbatim(chat_turns=True)
    made = template.next_prompt(WORDS, chat.tokenizer, chat.prompt, [chat.said], given)
    assert made == chat.ids(chat.turned)
    plain = Verbatim().next_prompt(WORDS, chat.tokenizer, QUESTION, [" four"], given)
    assert plain[: len(given)] == given
    assert chat.tokenizer.decode(plain[len(given) :]).strip() == "Question: Sure?\nAnswer:"
