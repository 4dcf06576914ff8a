"""The beginning-of-sequence token, and questions that look like templates."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
        assert options.pop("tokenize") in (True, False) and options == {
            "add_generation_prompt": True
        }
        return (
            f"{self.chat_template}"
            + "".join(f"[{m['role']}]{m['content']}" for m in messages)
            + "[assistant]"
        )


PLAIN = PromptTemplate("{question}")


@pytest.mark.parametrize(
    ("tokenizer", "beginnings"),
    [
        (Marked(), 1),
        (Marked(adds_bos=False), 0),
        (Marked(adds_bos=False, bos=None), 0),
        (Marked(chat="<s>"), 1),  # the chat template writes its own
        (Marked(chat=""), 0),  # and this one none
        (Marked(adds_bos=False, chat="<s>"), 1),
    ],
)
def test_a_sequence_begins_as_the_tokenizer_or_the_chat_template_has_it(
    tokenizer: Marked, beginnings: int
) -> None:
    tokens = PLAIN.tokens("Hi", tokenizer)
    assert tokens[:2].count(1) == tokens.count(1) == beginnings
    body = "[user]Hi[assistant]" if tokenizer.chat_template is not None else "Question: Hi\nAnswer:"
    assert tokens[beginnings:] == [ord(c) for c in body]


@pytest.mark.parametrize("question", ["{question}", "{}", "{0} % {x!r}", r"$\frac{1}{2}$", "{{a}}"])
@pytest.mark.parametrize("chat", [None, ""])
def test_braces_in_a_question_stay(question: str, chat: str | None) -> None:
    text = PromptTemplate("Solve {x}: {question}").text(question, Marked(chat=chat))
    body = f"Solve {{x}}: {question}"
    assert text == (
        f"[user]{body}[assistant]" if chat is not None else f"Question: {body}\nAnswer:"
    )


def test_chat_can_be_turned_off() -> None:
    with_system = PromptTemplate("{question}", system="S", examples=(("a", "b"),), chat=False)
    assert (
        with_system.text("c", Marked(chat=""))
        == "S\n\nQuestion: a\nAnswer: b\n\nQuestion: c\nAnswer:"
    )


@pytest.mark.parametrize("question", ["", " ", "\n\t"])
def test_an_empty_question_is_refused(question: str) -> None:
    with pytest.raises(InvalidInput, match="question is empty"):
        PLAIN.tokens(question, Marked())


@pytest.mark.parametrize("instruction", ["", "{Question}", "question"])
def test_an_instruction_without_a_place_for_the_question_is_refused(instruction: str) -> None:
    with pytest.raises(InvalidInput, match=r"must hold \{question\}"):
        PromptTemplate(instruction)


def test_a_chat_template_takes_options_and_may_refuse() -> None:
    class Thinking(Marked):
        def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
            thinking = options.pop("enable_thinking")
            return f"{thinking}" + super().apply_chat_template(messages, **options)

    text = PromptTemplate("{question}", options={"enable_thinking": False}).text(
        "q", Thinking(chat="T")
    )
    assert text == "FalseT[user]q[assistant]"
    with pytest.raises(InvalidInput, match="System role not supported"):
        PromptTemplate("{question}", system="Be brief.", options={"refuse": True}).text(
            "q", Marked(chat="T")
        )


def word_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    words = ["<unk>", "<s>", "</s>", *"abcdefghij"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", **options
    )


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


def test_prompts() -> None:
    tokenizer = word_tokenizer()
    plain = PromptTemplate(
        instruction="Solve: {question}", system="Be brief.", examples=(("1+1", "2"), ("2+2", "\n4"))
    )
    solved = "Question: Solve: 1+1\nAnswer: 2\n\nQuestion: Solve: 2+2\nAnswer:\n4"
    expected = f"Be brief.\n\n{solved}\n\nQuestion: Solve: {{x}}\nAnswer:"
    assert plain.text("{x}", tokenizer) == expected
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>"
    assert plain.text("3+3", tokenizer) == (
        "[system]Be brief.[user]Solve: 1+1[assistant]2[user]Solve: 2+2[assistant]\n4[user]Solve: "
        "3+3>"
    )
    assert (
        PromptTemplate("{question}", chat=False).text("a b", tokenizer) == "Question: a b\nAnswer:"
    )
    assert PromptTemplate("{question}").tokens("c d", tokenizer)[-2:] != []
    with pytest.raises(InvalidInput, match="empty"):
        plain.text(" \n", tokenizer)
    with pytest.raises(InvalidInput, match="question"):
        PromptTemplate("Solve this")
    with pytest.raises(InvalidInput, match="chat template"):
        PromptTemplate(chat=True).text("q", word_tokenizer())


def test_a_raw_prompt_is_the_instruction_and_nothing_else() -> None:
    raw = PromptTemplate("Q: {question}\nA:", examples=(("1+1?", "2"), ("2+2?", "\n4")), raw=True)
    assert raw.text("3+3?", Marked(chat="T")) == "Q: 1+1?\nA: 2\n\nQ: 2+2?\nA:\n4\n\nQ: 3+3?\nA:"
    assert PromptTemplate("{question}", raw=True).tokens("Hi", Marked(chat="T")) == [
        1,
        ord("H"),
        ord("i"),
    ]
    assert (
        PromptTemplate("{question} ", examples=(("a", "b"),), raw=True).text("c", Marked())
        == "a b\n\nc "
    )
    with pytest.raises(InvalidInput, match="raw=true and chat=true"):
        PromptTemplate("{question}", raw=True, chat=True)


@pytest.mark.parametrize("question", [None, 3, {"question": "q"}, ["q"], b"q"])
def test_a_question_that_is_no_text_is_refused_by_its_type(question: Any) -> None:
    with pytest.raises(InvalidInput, match=f"of type {type(question).__name__}"):
        PLAIN.tokens(question, Marked())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instruction": None}, "instruction=None is of type NoneType; give text"),
        ({"system": 5}, "system=5 is of type int; give text or None"),
        ({"chat": "yes"}, "chat='yes' is of type str; give True or False or None"),
        (
            {"examples": "ab"},
            r"examples='ab' is of type str; give pairs of texts, as \(\(question, answer\), ...\)",
        ),
        ({"examples": ("q", "a")}, "examples=.* give pairs of texts"),
        ({"examples": (("q", 2),)}, "examples=.* give pairs of texts"),
        ({"examples": None}, "examples=None is of type NoneType; give pairs"),
        ({"options": None}, "options=None is of type NoneType; give a dictionary"),
        (
            {"options": {"tokenize": True}},
            "options holds 'tokenize', which is set here; leave it out",
        ),
    ],
)
def test_what_no_prompt_can_be_made_of_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PromptTemplate(**fields)


def test_half_a_surrogate_pair_is_refused_where_it_stands() -> None:
    with pytest.raises(InvalidInput, match=r"'\\ud83d' at character 3"):
        PLAIN.tokens("ab \ud83d", Marked())
