"""The beginning-of-sequence token, and questions that look like templates."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import TemplateError

from ttc import InvalidInput
from ttc.text.prompt import PromptTemplate


class Marked:
    """Code points from 10 on are letters; 1 is "<s>", put in front when special tokens are asked
    for."""

    def __init__(self, adds_bos: bool = True, bos: int | None = 1, chat: str | None = None):
        self.adds_bos, self.bos_token_id, self.chat_template = adds_bos, bos, chat

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        tokens = []
        while text:
            special = text.startswith("<s>")
            tokens.append(1 if special else ord(text[0]))
            text = text[3 if special else 1 :]
        return [1, *tokens] if add_special_tokens and self.adds_bos else tokens

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        if options.pop("refuse", False):
            raise TemplateError("System role not supported")
        thinking = options.pop("enable_thinking", "")
        options.pop("tokenize")
        assert options == {"add_generation_prompt": True}
        said = "".join(f"[{m['role']}]{m['content']}" for m in messages)
        return f"{thinking}{self.chat_template}{said}[assistant]"


@pytest.mark.parametrize("question", ["{question}", "{}", "{0} % {x!r}", r"$\frac{1}{2}$", "{{a}}"])
@pytest.mark.parametrize("chat", [None, ""])
def test_braces_in_a_question_stay(question: str, chat: str | None) -> None:
    text = PromptTemplate("Solve {x}: {question}").text(question, Marked(chat=chat))
    body = f"Solve {{x}}: {question}"
    assert text == (
        f"[user]{body}[assistant]" if chat is not None else f"Question: {body}\nAnswer:"
    )


EXAMPLES = (("1+1", "2"), ("2+2", "\n4"))


@pytest.mark.parametrize(
    ("fields", "chat", "text"),
    [
        (
            {"instruction": "Solve: {question}", "system": "Be brief."},
            None,
            "Be brief.\n\nQuestion: Solve: 1+1\nAnswer: 2\n\nQuestion: Solve: 2+2\nAnswer:\n4"
            "\n\nQuestion: Solve: {x}\nAnswer:",
        ),
        (
            {"instruction": "Solve: {question}", "system": "Be brief."},
            "T",
            "T[system]Be brief.[user]Solve: 1+1[assistant]2[user]Solve: 2+2[assistant]\n4[user]"
            "Solve: {x}[assistant]",
        ),
        (
            {"system": "S", "chat": False, "examples": EXAMPLES[:1]},
            "T",
            "S\n\nQuestion: 1+1\nAnswer: 2\n\nQuestion: {x}\nAnswer:",
        ),
        (
            {"instruction": "Q: {question}\nA:", "raw": True},
            "T",
            "Q: 1+1\nA: 2\n\nQ: 2+2\nA:\n4\n\nQ: {x}\nA:",
        ),
        (
            {"instruction": "{question} ", "raw": True, "examples": EXAMPLES[:1]},
            None,
            "1+1 2\n\n{x} ",
        ),
        (
            {"options": {"enable_thinking": False}, "examples": ()},
            "T",
            "FalseT[user]{x}[assistant]",
        ),
    ],
)
def test_what_is_around_a_question(fields: dict[str, Any], chat: str | None, text: str) -> None:
    given = {"instruction": "{question}", "examples": EXAMPLES} | fields
    tokenizer = Marked(chat=chat)
    assert PromptTemplate(**given).text("{x}", tokenizer) == text
    tokens = PromptTemplate(**given).tokens("{x}", tokenizer)
    through_chat = chat is not None and "chat" not in fields and "raw" not in fields
    assert tokens == tokenizer.encode(text, add_special_tokens=not through_chat)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instruction": None}, "instruction=None is of type NoneType; give text"),
        ({"instruction": ""}, r"must hold \{question\}"),
        ({"instruction": "{Question}"}, r"must hold \{question\}"),
        ({"instruction": "question"}, r"must hold \{question\}"),
        ({"system": 5}, "system=5 is of type int; give text or None"),
        ({"chat": "yes"}, "chat='yes' is of type str; give True or False or None"),
        ({"chat": True, "raw": True}, "raw=true and chat=true"),
        (
            {"examples": "ab"},
            r"examples='ab' is of type str; give pairs of texts, as \(\(question, answer\), ...\)",
        ),
        ({"examples": ("q", "a")}, "examples=.* give pairs of texts"),
        ({"examples": (("q", 2),)}, "examples=.* give pairs of texts"),
        ({"examples": None}, "examples=None is of type NoneType; give pairs"),
        ({"options": None}, "options=None is of type NoneType; give a dictionary"),
        *(
            ({"options": {name: 1}}, f"options holds '{name}', which is set here; leave it out")
            for name in ("tokenize", "max_length", "return_dict", "continue_final_message")
        ),
    ],
)
def test_what_no_prompt_can_be_made_of_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PromptTemplate(**fields)


@pytest.mark.parametrize(
    ("question", "fields", "message"),
    [
        *((blank, {}, "question is empty") for blank in ("", " ", "\n\t")),
        (None, {}, "of type NoneType"),
        ({"question": "q"}, {}, "of type dict"),
        (b"q", {}, "of type bytes"),
        ("ab \ud83d", {}, r"'\\ud83d' at character 3"),
        ("a?", {"chat": True}, "the tokenizer has no chat template"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(
    question: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        PromptTemplate(**fields).tokens(question, Marked())


@pytest.mark.parametrize(
    ("fields", "way_out"),
    [
        ({}, "; set chat to false"),
        ({"system": "Be brief."}, "; leave the system text out, or"),
        ({"system": "Be brief.", "examples": (("a", "b"),)}, "the system text or the examples out"),
    ],
)
def test_a_template_that_refuses_names_what_was_given_alone(
    fields: dict[str, Any], way_out: str
) -> None:
    template = PromptTemplate(**fields, options={"refuse": True})
    with pytest.raises(InvalidInput, match=f"System role not supported.*{way_out}"):
        template.text("a?", Marked(chat="T"))
