"""The prompts of published chat templates and tokenizers: as transformers makes them, and as they
are documented."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.helpers.chats import (
    ANSWER,
    CHATS,
    EXAMPLES,
    QUESTION,
    SYSTEM,
    WORDS,
    Chat,
    by_hand,
    tokenizer,
)
from ttc import InvalidInput
from ttc.text.prompt import PromptTemplate

USER, MODEL = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}
AGAIN, ORDER = {"role": "user", "content": WORDS}, {"role": "system", "content": SYSTEM}
SHOT = [
    {"role": "user", "content": EXAMPLES[0][0]},
    {"role": "assistant", "content": EXAMPLES[0][1]},
]

cases = pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)


def whole(chat: Chat, messages: list[dict[str, str]]) -> list[int]:
    """Transformers' own call."""
    ids = chat.tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False, **chat.options
    )
    assert isinstance(ids, list)
    return ids


def asked(chat: Chat, **settings: Any) -> PromptTemplate:
    return PromptTemplate("{question}", options=chat.options, **settings)


@cases
def test_a_prompt_is_what_the_chat_template_writes(chat: Chat) -> None:
    plain = asked(chat)
    assert plain.text(QUESTION, chat.tokenizer) == chat.prompt
    assert plain.tokens(QUESTION, chat.tokenizer) == chat.ids(chat.prompt) == whole(chat, [USER])
    assert plain.ends(chat.tokenizer) == ()


@cases
def test_a_system_text_and_examples_go_through_the_chat_template(chat: Chat) -> None:
    in_one = {**USER, "content": f"{SYSTEM}\n\n{QUESTION}"}  # for templates without a system role
    folded = chat.system is not None and in_one["content"] in chat.system
    expected = [
        (chat.system, asked(chat, system=SYSTEM), [in_one] if folded else [ORDER, USER]),
        (chat.shot, asked(chat, examples=EXAMPLES), [*SHOT, USER]),
    ]
    for text, template, messages in expected:
        if text is not None:
            assert template.text(QUESTION, chat.tokenizer) == text
            assert (
                template.tokens(QUESTION, chat.tokenizer) == chat.ids(text) == whole(chat, messages)
            )


@cases
def test_a_next_turn_makes_the_whole_chat(chat: Chat) -> None:
    template, before = asked(chat), chat.ids(chat.prompt)
    given = chat.ids(chat.prompt + chat.said)
    assert given[: len(before)] == before  # the answer goes on from the prompt
    made = template.next_prompt(WORDS, chat.tokenizer, QUESTION, [chat.said], given)
    assert whole(chat, [USER, MODEL, AGAIN]) == chat.ids(chat.turned)
    if chat.rewrites:  # a user of transformers sends what the model wrote
        assert made == whole(chat, [USER, {**MODEL, "content": chat.said}, AGAIN])
    else:
        assert made == chat.ids(chat.turned)
    assert (made[: len(given)] == given) is not chat.rewrites
    text = template.next_turn(WORDS, chat.tokenizer, QUESTION, [chat.said])
    assert chat.turned.endswith(text) and text.strip() and ANSWER not in text


@pytest.mark.few(8)
@cases
def test_a_next_turn_stands_on_the_models_own_tokens_on_request_alone(chat: Chat) -> None:
    given = chat.ids(chat.prompt + chat.said)
    template = asked(chat, keep_generated=True)
    made = template.next_prompt(WORDS, chat.tokenizer, QUESTION, [chat.said], given)
    assert made == (given + chat.ids(chat.follows) if chat.rewrites else chat.ids(chat.turned))


@pytest.mark.few(8)
@cases
def test_a_third_turn_follows_the_second(chat: Chat) -> None:
    given = chat.ids(chat.turned + chat.said)
    made = asked(chat).next_prompt(
        "And?", chat.tokenizer, QUESTION, [chat.said, WORDS, chat.said], given
    )
    said = {**MODEL, "content": chat.said} if chat.rewrites else MODEL
    assert made == whole(chat, [USER, said, AGAIN, said, {"role": "user", "content": "And?"}])


@cases
def test_what_follows_the_question_is_the_templates_own(chat: Chat) -> None:
    end = asked(chat).end_of_prompt("What is <think> for?", chat.tokenizer)
    assert end is not None and chat.prompt == chat.prompt.rpartition(QUESTION)[0] + QUESTION + end
    later = asked(chat).end_of_prompt(QUESTION, chat.tokenizer, [chat.said, "Is <think> it?"])
    assert later is not None and chat.turned == chat.turned.rpartition(WORDS)[0] + WORDS + later


# ---------------------------------------------------------------- raw prompts

SPECIAL = ("<s>", "</s>", "[gMASK]", "<sop>", "[CLS]", "[SEP]")
RAW = {
    # name: (kind, bos, eos, what is put before, what is put after)
    "gpt_2": ("bytes", "<s>", "</s>", (), ()),  # it has a first token, and puts none
    "llama_3": ("bytes", "<s>", "</s>", ("<s>",), ()),
    "llama_2": ("pieces", "<s>", "</s>", ("<s>",), ()),
    "llama_2_not_legacy": ("first", "<s>", "</s>", ("<s>",), ()),
    "yi": ("first", "<s>", "</s>", (), ()),
    "glm_4": ("bytes", None, "</s>", ("[gMASK]", "<sop>"), ()),
    "two_of_one": ("bytes", "<s>", "</s>", ("<s>", "<s>"), ()),
    "t5": ("pieces", None, "</s>", (), ("</s>",)),
    "llama_that_adds_an_end": ("pieces", "<s>", "</s>", ("<s>",), ("</s>",)),
    "bert": ("bytes", None, None, ("[CLS]",), ("[SEP]",)),
}


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("raw", [True, False])
def test_a_raw_prompt_is_what_the_tokenizer_makes_of_its_text(name: str, raw: bool) -> None:
    kind, bos, eos, before, after = RAW[name]
    made = tokenizer(SPECIAL, kind, bos, eos, before, after)
    template = PromptTemplate("{question}", raw=raw, examples=EXAMPLES)
    text = "1 + 1? two\n\n2 + 2?"
    if not raw:
        text = "Question: 1 + 1?\nAnswer: two\n\nQuestion: 2 + 2?\nAnswer:"
    around = [SPECIAL.index(token) for token in before], [SPECIAL.index(token) for token in after]
    expected = [*around[0], *by_hand(text, SPECIAL, kind), *around[1]]
    assert template.tokens(QUESTION, made) == expected == made(text)["input_ids"]
    assert template.text(QUESTION, made) == text
    assert template.ends(made) == (() if raw else ("Question:",))


@pytest.mark.parametrize("kind", ["bytes", "pieces", "first"])
def test_a_next_turn_without_a_chat_template_goes_on_in_the_same_form(kind: str) -> None:
    made = tokenizer(SPECIAL, kind, "<s>", "</s>", ("<s>",))
    template = PromptTemplate("{question}")
    start = template.text(QUESTION, made)
    for said, after in (
        (" four.", "\n\nQuestion: Sure?\nAnswer:"),
        (" four.\n\nQuestion:", " Sure?\nAnswer:"),  # the model has begun it
    ):
        given = made(start + said)["input_ids"]
        prompt = template.next_prompt(WORDS, made, QUESTION, [said], given)
        assert prompt == made(start + said + after)["input_ids"]


# ---------------------------------------------------------------- what may go otherwise


def test_a_first_token_that_transformers_leaves_out_is_put_on_request_alone() -> None:
    zephyr = CHATS["zephyr"]
    bos = zephyr.tokenizer.bos_token_id
    usual = asked(zephyr).tokens(QUESTION, zephyr.tokenizer)
    assert bos not in usual and asked(zephyr, add_bos=True).tokens(QUESTION, zephyr.tokenizer) == [
        bos,
        *usual,
    ]
    llama = CHATS["llama_2"]
    assert asked(llama, add_bos=True).tokens(QUESTION, llama.tokenizer) == llama.ids(llama.prompt)
    for chat, begins in ((zephyr, "<s>"), (llama, "")):
        assert asked(chat, add_bos=True).text(QUESTION, chat.tokenizer) == begins + chat.prompt


class Calls:
    """A tokenizer whose call gives the tokens in a way of its own."""

    chat_template, bos_token_id = "own", None

    def __init__(self, give: Any):
        self.give = give

    def apply_chat_template(
        self, messages: Any, *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        return self.give if tokenize else "text"


@pytest.mark.parametrize("give", [[5, 6], {"input_ids": [5, 6]}, {"input_ids": [[5, 6]]}, [[5, 6]]])
def test_tokens_are_read_out_of_whatever_the_call_gives(give: Any) -> None:
    assert PromptTemplate("{question}").tokens("q", Calls(give)) == [5, 6]


def test_a_template_that_leaves_answers_out_is_refused_a_second_turn() -> None:
    made = tokenizer(
        SPECIAL, "bytes", "<s>", "</s>", (), (), "{{ 'U: ' + messages[-1]['content'] + ' A:' }}"
    )
    template = PromptTemplate("{question}")
    for ask in (
        lambda: template.next_turn(WORDS, made),
        lambda: template.next_prompt(
            WORDS, made, QUESTION, ["four"], made("U: 2 + 2? A:four")["input_ids"]
        ),
    ):
        with pytest.raises(
            InvalidInput, match=r"leaves out a message of the user.*asks in one turn"
        ):
            ask()


LLAVA = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ "
    "content['text'] }}{% endfor %}{% if message['role'] == 'assistant' %}{{ '</s>' }}{% else "
    "%}{{ ' ' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""llava-hf/llava-1.5-7b-hf, chat_template.json, its images left out. A text in place of the list is
passed over."""


def test_a_template_that_takes_lists_of_parts_alone_is_given_these() -> None:
    made = tokenizer(SPECIAL, "bytes", "<s>", "</s>", ("<s>",), (), LLAVA)
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    template = PromptTemplate("{question}")
    expected = made.apply_chat_template(
        parts, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert template.tokens(QUESTION, made) == expected
    assert template.text(QUESTION, made) == f"USER: {QUESTION} ASSISTANT:"
    assert template.next_turn(WORDS, made) == f"</s>USER: {WORDS} ASSISTANT:"


def test_several_templates_without_a_default_ask_for_one() -> None:
    chatml = CHATS["chatml"]
    made = copy.deepcopy(chatml.tokenizer)
    made.chat_template = {"plain": chatml.template, "tool_use": "tools"}
    with pytest.raises(
        InvalidInput,
        match=r"several chat templates \(\+dataset\.chat_options\.chat_template=NAME\)",
    ):
        PromptTemplate("{question}").tokens(QUESTION, made)
    chosen = PromptTemplate("{question}", options={"chat_template": "plain"})
    assert chosen.tokens(QUESTION, made) == chatml.ids(chatml.prompt)


def test_a_template_that_refuses_a_second_turn_says_why() -> None:
    one = (
        "{% if messages | length > 1 %}{{ raise_exception('one message') }}{% endif %}{{ "
        "messages[0]['content'] }}"
    )
    made = tokenizer(SPECIAL, "bytes", "<s>", "</s>", (), (), one)
    with pytest.raises(InvalidInput, match="refuses these messages: one message; use a search"):
        PromptTemplate("{question}").next_prompt(WORDS, made, QUESTION, ["four"], [1])


def test_an_answer_in_other_pieces_than_the_tokenizers_is_sent_in_the_tokenizers() -> None:
    chat = CHATS["chatml"]
    # decoded without special tokens: "four"
    odd = [*chat.ids(chat.prompt), *chat.ids("<|im_start|>four")]
    assert asked(chat).next_prompt(WORDS, chat.tokenizer, QUESTION, ["four"], odd) == chat.ids(
        chat.turned
    )
    kept = asked(chat, keep_generated=True).next_prompt(
        WORDS, chat.tokenizer, QUESTION, ["four"], odd
    )
    assert kept == odd + chat.ids(
        "<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    )
