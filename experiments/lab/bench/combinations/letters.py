"""Texts of a draw: its tokenizers, grammars, questions and tools."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import transformers as hf
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils.chat_template_utils import render_jinja_template

from experiments.lab.bench.combinations.combination import Combination
from experiments.lab.bench.combinations.models import REAL
from experiments.standins import small_models
from search import Problem
from ttc.model.loading.load import load_tokenizer
from ttc.text.thinking_marks import ThinkingMarks
from ttc.tool_calls import Written
from ttc.tools.base import Tool, ToolError, Tools
from ttc.tools.formats import ToolFormat


class Letters:
    """A tokenizer of one token per character, whose texts have few letters."""

    eos_token_id: int | None = None
    shown = "abcdefgh" * (small_models.VOCAB // 8)

    def __init__(self, chat_template: str | None = None) -> None:
        self.chat_template = chat_template

    def apply_chat_template(self, messages: Any, tokenize: bool = True, **options: Any) -> Any:
        written = render_jinja_template([messages], chat_template=self.chat_template, **options)
        text = written[0][0]
        return self.encode(text) if tokenize else text

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return [ord(c) % small_models.VOCAB for c in text]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(self.shown[token] for token in tokens)


class LettersOfGrammar(Letters, hf.PreTrainedTokenizerFast):  # type: ignore[misc]
    """To a grammar, which reads fast tokenizers alone, each token is its ASCII character."""

    eos_token_id = 0

    def __init__(self, chat_template: str | None = None) -> None:
        letters = {c: byte for byte, c in bytes_to_unicode().items() if byte < small_models.VOCAB}
        tokenizer = Tokenizer(BPE(letters, []))
        tokenizer.decoder = ByteLevel()
        hf.PreTrainedTokenizerFast.__init__(
            self, tokenizer_object=tokenizer, chat_template=chat_template
        )


class Characters(LettersOfGrammar):
    """To everybody each token is its ASCII character, so that there is JSON."""

    shown = "".join(map(chr, range(small_models.VOCAB)))


GRAMMARS: dict[str | None, dict[str, Any]] = {
    None: {},
    "lark": {"grammar": r"start: /([ -O]{2}(.|\n))*/"},
    "schema": {
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "string", "maxLength": 4}},
            "required": ["a"],
            "additionalProperties": False,
        }
    },
}
"""Of the former two tokens are of the vocabulary's middle, and the third is free."""
CHAT = (
    "{% if tools %}f{% endif %}{% for m in messages %}{{ m.role[0] }}{% if m.role == 'assistant' %}"
    "{{ m.content.split('g')[-1].split('>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)
"""A chat template, which leaves out what was thought."""


def tokenizer_of(model: str, c: Combination) -> Any:
    if model == REAL:
        return load_tokenizer(model)
    kind = LettersOfGrammar if c.grammar else Characters if c.tools in JSON_TOOLS else Letters
    return letters(kind, CHAT if c.chats else None)


@cache
def letters(kind: type[Letters], chat_template: str | None) -> Any:
    return kind(chat_template)


EARLIER = [
    {"role": "system", "content": "be"},
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cad"},
]


def problems_of(c: Combination) -> list[Problem]:
    """Questions of about as many tokens, which begin alike two by two."""
    if c.model == REAL:
        return [
            Problem(
                f"Ann has {n + 3} apples and buys {c.seed + 9} more. How many?", f"{c.seed}-{n}"
            )
            for n in range(c.problems)
        ]
    questions = []
    for number in range(c.problems):
        common = small_models.tokens(1000 * c.seed + number // 2, c.prompt_tokens)
        own = small_models.tokens(1000 * c.seed + 500 + number, 1 + number % 5)
        questions.append("".join(map(chr, [*common, *own])))
    ids = [f"{c.seed}-{n}" for n in range(c.problems)]
    if not c.chats:
        return list(map(Problem, questions, ids))
    chats: list[list[dict[str, str]]] = [[{"role": "user", "content": q}] for q in questions]
    for number, chat in enumerate(chats):
        chat[:0] = EARLIER[: number % 4]
    return [Problem.of_chat(chat, id=name) for chat, name in zip(chats, ids, strict=True)]


MARKS = ThinkingMarks(("d", "<"), ("g", ">"), closing=">")
"""The former of letters, the latter of a grammar's. What closes a thought is one token of both."""


class LetterCalls(ToolFormat):
    """A letter is a call, with what stands before it in the model's turn."""

    ends = ("h",)

    def __init__(self, inline: bool) -> None:
        self.inline = inline

    def calls(self, text: str) -> list[Written]:
        before, letter, after = text.rpartition("h")
        return [Written("tool", {"text": before}, len(before))] if letter and not after else []

    def answered(self, answer: str) -> str:
        return answer


def answer_of(text: str) -> str:
    time.sleep(len(text) % 2 / 1000)
    if len(text) % 5 == 4:
        raise ToolError("d")
    return text[-2:] * (len(text) % 3) + "e"


JSON_TOOLS = ("strict", "required")
"""Tools whose calls are JSON."""
TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 3}},
    "required": ["text"],
}
SCHEMA = {"type": "function", "function": {"name": "tool", "parameters": TEXT}}


def tools_of(c: Combination) -> Tools | None:
    """Where a call ends the model's turn, it is looked for before that if no turn ends by itself."""
    if c.tools is None:
        return None
    tool = Tool(SCHEMA, None if c.tools == "caller" else answer_of)
    settings: dict[str, Any] = {"calls_per_branch": 2, "parallel": c.generation is not None}
    if c.tools in JSON_TOOLS:
        settings |= {"strict": c.tools == "strict", "choice": "required"}
        return Tools([tool], format="hermes", **settings)
    return Tools([tool], format=LetterCalls(c.tools != "turns"), **settings)
