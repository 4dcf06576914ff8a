"""Roles that chat templates know or do not know: every text is written once, or the chat is refused
by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.chats import tokenizer
from ttc import InvalidInput
from ttc.text.chat import chat_text, chat_tokens, common_start, next_prompt, next_turn_text
from ttc.text.prompt import PromptTemplate, raw_tokens
from verifiers import LLMJudge

RAISES = "{{ raise_exception('roles must alternate') }}"
TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
ASSISTANT = "{% if add_generation_prompt %}<assistant>{% endif %}"
SYSTEMS = "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
OTHERS = TURNS.replace("in messages", "in messages if m.role != 'system'")
KNOWN = "{% for m in messages %}{% if m.role in ('user', 'assistant') %}"

TEMPLATES = {
    "any role": TURNS,
    "developer": "{# developer #}" + TURNS,
    "no system": TURNS.replace("<{{", "{% if m.role == 'system' %}" + RAISES + "{% endif %}<{{", 1),
    "system left out": KNOWN
    + TURNS.partition("%}")[2].replace("{% endfor", "{% endif %}{% endfor"),
    "first system alone": "{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    + "{% endif %}"
    + OTHERS,
    "roles in turn": "{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% endif %}"
    + TURNS.replace(
        "<{{",
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" + RAISES + "{% endif %}<{{",
        1,
    ),
    "roles in turn, no system": TURNS.replace(
        "<{{",
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" + RAISES + "{% endif %}<{{",
        1,
    ),
    "systems first": SYSTEMS + OTHERS,
    "a beginning with each system": TURNS.replace(
        "<{{", "{% if m.role == 'system' or loop.first %}{{ bos_token }}{% endif %}<{{", 1
    ),
    "the last user alone": "{% set m = messages[-1] %}<{{ m.role }}>{{ m.content }}<end>",
}
"""What real templates do with roles, in templates that are written for these tests."""

SAID = {
    "s": ("system", "Be brief. "),
    "S": ("system", "Be kind."),
    "d": ("developer", "Be exact."),
    "e": ("system", ""),
    "u": ("user", "2 + 2?"),
    "U": ("user", "Sure?"),
    "a": ("assistant", "four"),
    "A": ("assistant", "yes"),
}
CHATS = ("u", "uaU", "su", "suaU", "du", "duaU", "sdu", "uU", "suU", "uaUu", "uSaU", "uaSU")
CHATS = (*CHATS, "suaSU", "uS", "sSu", "eu", "euaU", "au", "sau", "uaAU", "uaS", "us")


def chat(letters: str) -> list[dict[str, str]]:
    said = [SAID[letter] for letter in letters]
    return [{"role": role, "content": f"{text}{i}" if text else ""} for i, (role, text) in
            enumerate(said)]  # fmt: skip


def wrong(text: str, messages: Sequence[dict[str, str]], bos: str | None) -> str:
    """What is not right with a prompt: a text that is not there once, texts of the user and the
    assistant in another order, a beginning of sequence that stands twice in one turn."""
    places = []
    for message in messages:
        said = message["content"].strip()
        if said and text.count(said) != 1:
            return f"{said} is there {text.count(said)} times"
        if said and message["role"] in ("user", "assistant"):
            places.append(text.index(said))
    turns = sum(message["role"] == "assistant" for message in messages) + 1
    begun = text.count(bos) if bos else 0
    if places != sorted(places):
        return "the order"
    return "" if begun <= 1 or begun == turns else f"{begun} beginnings"


@pytest.mark.parametrize("bos", ["<s>", None])
@pytest.mark.parametrize("name", TEMPLATES)
def test_each_text_is_written_once_or_the_chat_is_refused(name: str, bos: str | None) -> None:
    own = tokenizer(("<s>",), "bytes", bos, "</s>", ("<s>",), (), TEMPLATES[name] + ASSISTANT)
    for letters in CHATS:
        messages = chat(letters)
        try:
            text = chat_text(messages, own)
        except InvalidInput as error:
            assert "role" in str(error), letters
            alternating = name.startswith("roles in turn") and letters in ("au", "uaAU")
            assert alternating or name == "the last user alone", (letters, error)
            continue
        assert not wrong(text, messages, bos), (letters, text)
        assert text.endswith("<assistant>")
        assert chat_tokens(messages, own) == own.encode(text, add_special_tokens=False)


def test_what_a_template_takes_stays_as_it_is() -> None:
    own = tokenizer((), "bytes", None, "</s>", template=TEMPLATES["any role"] + ASSISTANT)
    for letters in CHATS:
        messages = chat(letters)
        as_it_is = [
            {**m, "role": "system" if m["role"] == "developer" else m["role"]} for m in messages
        ]
        expected = own.apply_chat_template(as_it_is, tokenize=False, add_generation_prompt=True)
        assert chat_text(messages, own) == expected
    knows = tokenizer((), "bytes", None, "</s>", template=TEMPLATES["developer"] + ASSISTANT)
    assert chat_text(chat("du"), knows).startswith("<developer>")


def test_a_system_text_without_a_place_goes_before_the_words_of_the_user() -> None:
    for name in ("no system", "system left out", "roles in turn, no system"):
        own = tokenizer((), "bytes", None, "</s>", template=TEMPLATES[name] + ASSISTANT)
        prompt = PromptTemplate("{question}", system="Be brief.")
        assert prompt.text("2 + 2?", own) == "<user>Be brief.\n\n2 + 2?<end><assistant>"
        joined = chat_text(chat("uU"), own)
        apart = "roles in turn" not in name
        assert joined.count("<user>") == (2 if apart else 1)


@pytest.mark.parametrize("name", ["system left out", "roles in turn, no system", "any role"])
def test_answers_of_tools_are_told_where_no_tool_can_speak(name: str) -> None:
    """As words of the user, after the calls as words of the assistant."""
    own = tokenizer((), "bytes", None, "</s>", template=TEMPLATES[name] + ASSISTANT)
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    calls = [{"id": str(i), "type": "function", "function": function} for i in range(2)]
    told = [{"role": "tool", "content": said, "tool_call_id": str(i)} for i, said in
            enumerate(("dry", "wet"))]  # fmt: skip
    asked = {"role": "assistant", "content": "", "tool_calls": calls}
    text = chat_text([*chat("su"), asked, *told], own)
    assert 0 < text.index("2 + 2?") < text.index("dry") < text.index("wet")
    if name != "any role":
        assert text.count('<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}') == 2
        assert text.count("<tool_response>") == 2 and "<tool>" not in text


BEGINS = "{{ bos_token }}" + TURNS + ASSISTANT


@pytest.mark.parametrize("adds", [True, False])
def test_a_sequence_begins_once(adds: bool) -> None:
    """In prompts, further turns and reward models, whether the tokenizer adds the token or not."""
    before = ("<s>",) if adds else ()
    own = tokenizer(("<s>", "</s>"), "bytes", "<s>", "</s>", before, (), BEGINS)
    assert raw_tokens("2", own).count(0) == int(adds)
    for add_bos in (False, True):
        template = PromptTemplate("{question}", system="Be brief.", add_bos=add_bos)
        prompt = template.tokens("2 + 2?", own)
        assert prompt.count(0) == 1 and prompt[0] == 0
        said = [*prompt, *own.encode("four", add_special_tokens=False)]
        assert template.next_prompt("Sure?", own, "2 + 2?", ["four"], said).count(0) == 1
        assert "<s>" not in template.next_turn("Sure?", own)
    judge = LLMJudge(model=(None, own))
    assert judge.closed("2 + 2?", ["four"]).count(0) == 1


FOLDER = os.environ.get("TTC_CHAT_TEMPLATES", "")


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="TTC_CHAT_TEMPLATES names no folder of chat templates")
def test_published_templates_write_each_text_once() -> None:
    """All roles, with tools where the template needs them; what is refused is printed."""
    right, refused = list[str](), list[str]()
    for file in sorted(Path(FOLDER).glob("*.jinja")):
        why = ""
        for before in ((), ("<s>",)):
            own = tokenizer(("<s>", "</s>"), "bytes", "<s>", "</s>", before, (), file.read_text())
            for letters in CHATS:
                try:
                    why = why or _wrong_prompt(own, letters)
                except InvalidInput as error:
                    message = str(error)
                    assert "refuse" in message or "role" in message or "without tools" in message
                    refused.append(f"{file.stem} {letters}: {message}")
        assert not why, f"{file.stem}: {why}"
        right.append(file.stem)
    print(f"{len(right)} templates; refused:", *refused, sep="\n")
    assert len(refused) < len(right) * len(CHATS) / 4


def _wrong_prompt(own: Any, letters: str) -> str:
    messages = chat(letters)
    text = chat_text(messages, own)
    if why := wrong(text, messages, "<s>"):
        return f"{letters}: {why}"
    if letters == "u":
        tokens = chat_tokens(messages, own)
        further = next_prompt(messages, "four", "Sure?", tokens, own)
        if further.count(0) > 1 or "<s>" in next_turn_text(messages, "Sure?", own):
            return "a further turn begins again"
    answered = chat_text([*messages, {"role": "assistant", "content": "THE-ANSWER"}], own)
    opened = text[len(common_start(text, answered)) :].strip()
    if opened and "THE-ANSWER" not in answered:
        return f"{letters}: {opened} before the answer"
    return ""
