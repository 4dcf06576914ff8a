"""Verdicts are asked outside thoughts, whatever the chat template makes of thinking."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.backends import FakeBackend
from tests.helpers.chats import tokenizer
from tests.helpers.thinking import OPENING, SWITCHED, TURNS, thinker
from ttc import InvalidInput, UnsupportedModel
from ttc.text.chat import QUESTION, chat_text, following, next_turn_text
from ttc.text.thinking_marks import ThinkingMarks
from ttc.text.thinking_models import marks_of
from ttc.text.thinking_switch import without_thought
from ttc.text.thoughts import Thoughts
from verifiers import LLMJudge, LLMVerifier, SelfVerifier, Tournament
from verifiers.side_branches import side_tokens

WORDS = ("yes", "no")
TAGS = ("<think>", "</think>", *WORDS)
ENDED = TURNS.replace(
    "<turn>assistant\n", "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
LEARNED = ENDED.replace(
    "{{ m.content }}",
    "{% if m.thinking %}<T>{{ m.thinking }}</T>\n{% endif %}{{ m.content }}",
)
HEADED = ENDED.replace("\n", "").replace(
    "{{ m.content }}",
    "{% if m.thinking %} to=self:{{ m.thinking }}<eos><turn>assistant{% endif %}"
    "{% if m.role == 'assistant' %} to=user:{% endif %}{{ m.content }}",
)
PLAIN_HEAD = ENDED.replace(
    "{{ m.content }}", "{% if m.role == 'assistant' %}>>>all\n{% endif %}{{ m.content }}"
).replace("<turn>assistant\n{% endif", "<turn>assistant\n>>>{% endif")
HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>")
EMPTY = TURNS + "<think>\n\n</think>\n\n"
BOTH = TURNS + "{% if thinking is not defined or thinking %}<think>\n{% else %}</think>{% endif %}"

MODELS: dict[str, tuple[Any, str]] = {
    "opens": (lambda: thinker(OPENING, plain=TAGS), "<think>\n\n</think>\n\n"),
    "opens, marks are words": (lambda: thinker(OPENING, plain=WORDS), "<think>\n\n</think>\n\n"),
    "closes": (lambda: thinker(EMPTY, plain=TAGS), "<think>\n\n</think>\n\n"),
    "switch": (lambda: thinker(SWITCHED, plain=TAGS), "<think>\n\n</think>\n\n"),
    "opens, with a switch": (lambda: thinker(BOTH, plain=TAGS), "</think>"),
    "left to the model": (lambda: thinker(TURNS, plain=TAGS), "<think>\n\n</think>\n\n"),
    "channels": (
        lambda: thinker(TURNS + "{# <|channel|> <|message|> #}", HARMONY, WORDS),
        "<|channel|>final<|message|>",
    ),
    "as the template writes a thought": (lambda: thinker(LEARNED, plain=WORDS), "<T></T>"),
    "a message's thinking is no switch": (
        lambda: thinker(LEARNED + "{# <think> #}", plain=TAGS),
        "<T></T>",
    ),
    "a head before each answer": (lambda: thinker(HEADED, plain=WORDS), " to=user:"),
    "no thoughts, a head": (lambda: thinker(PLAIN_HEAD, plain=WORDS), ">>>all"),
    "no thoughts": (lambda: thinker(TURNS, plain=WORDS), ""),
}


class Asked(FakeBackend):
    """Reads texts by a tokenizer of the test's."""

    def __init__(self, tokenizer: Any):
        super().__init__()
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", MODELS)
def test_no_thought_is_open_where_the_verdict_is_read(name: str) -> None:
    make, end = MODELS[name]
    tokenizer = make()
    options, closing = without_thought(tokenizer)
    text = chat_text([{"role": "user", "content": "Right?"}], tokenizer, options) + closing
    assert text.rstrip().endswith(end.rstrip())
    backend = Asked(tokenizer)
    tokens = side_tokens("Right?", backend)
    thoughts = Thoughts.of(tokenizer)
    assert tokenizer.decode(tokens) == text
    assert thoughts is None or not thoughts.begun(tokens)


@pytest.mark.parametrize("name", MODELS)
def test_the_self_verifier_asks_outside_thoughts(name: str) -> None:
    make, end = MODELS[name]
    tokenizer = make()
    backend = Asked(tokenizer)
    prompt = tokenizer.encode("<turn>user\n2 + 2?<eos><turn>assistant\n")
    branch = backend.root(prompt)
    for token in following("<think>2</think>4", tokenizer):
        branch.append(token, -1.0, 0.5)
    SelfVerifier("Right?").rate([branch], ["2 + 2?"], backend)
    (asked,) = backend.scored
    _, _, last = tokenizer.decode(asked).rpartition("<turn>assistant")
    assert last.strip() == end.strip()


REFUSED = ENDED.replace(
    "{{ m.content }}", "{% if m.thinking %}%%{{ m.thinking }}%%{% endif %}{{ m.content }}"
).replace("<turn>assistant\n{% endif", "<turn>assistant\n((so {% endif")
"""A template that opens thoughts with marks of no known model, and whose own marks are refused."""


@pytest.mark.parametrize(
    "verifier",
    [
        SelfVerifier("Right?"),
        SelfVerifier("Right?", fresh=True),
        LLMVerifier(("Right?",)),
        LLMVerifier(("Right?",), max_tokens=4),
        Tournament(),
    ],
    ids=["self", "fresh", "grades", "grades after words", "tournament"],
)
def test_verdicts_are_asked_outside_thoughts_whose_marks_a_user_has_named(verifier: Any) -> None:
    tokenizer = thinker(REFUSED, plain=("yes", "no", *"ABCDE"))
    backend = Asked(tokenizer)
    branches = backend.fork(backend.root(tokenizer.encode("<turn>user\n2 + 2?<eos>")), 2)
    for branch, answer in zip(branches, "45", strict=True):
        branch.thoughts = Thoughts(ThinkingMarks("((so", "))"), tokenizer)
        branch.append(tokenizer.encode(answer)[0], -1.0, 0.5)
    assert verifier.price(branches, ["2 + 2?"] * 2, backend) > 0
    verifier.rate(branches, ["2 + 2?"] * 2, backend)
    assert backend.scored
    for asked in map(tokenizer.decode, backend.scored):
        last = asked.rpartition("((so")[2]
        assert "))" in last, last
    for branch in branches:
        branch.thoughts = None  # thinking_marks=False
    verifier.rate(branches, ["2 + 2?"] * 2, backend)


def test_a_verifier_that_may_think_reads_after_its_thought() -> None:
    """Its question keeps the thought that the template opens."""
    tokenizer = thinker(OPENING, plain=TAGS)
    at_once, thinking = LLMVerifier(), LLMVerifier(max_tokens=16)
    backend = Asked(tokenizer)
    thoughts = Thoughts.of(tokenizer)
    assert thoughts is not None
    assert not thoughts.begun(at_once.question_tokens("Right?", backend))
    assert thoughts.begun(thinking.question_tokens("Right?", backend))


FOLDER = os.environ.get("TTC_CHAT_TEMPLATES", "")


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="TTC_CHAT_TEMPLATES names no folder of chat templates")
def test_verdicts_of_published_templates_are_asked_outside_thoughts() -> None:
    """Of `self`, fresh or on a branch, `llm`, `llm_judge` and `tournament`, which all ask by
    `without_thought`: an answer can follow, as the template itself writes answers."""
    asked, refused = 0, list[str]()
    for file in sorted(Path(FOLDER).glob("*.jinja")):
        own = tokenizer((), "bytes", "<s>", "</s>", template=file.read_text())
        try:
            options, closing = without_thought(own)
            follow_up = next_turn_text(QUESTION, "Right?", own, options)
            prompts = [
                own.decode(side_tokens("Right?", Asked(own))),
                follow_up + closing,
                own.decode(LLMJudge(model=(None, own)).closed("2 + 2?", ["4"])),
            ]
        except (InvalidInput, UnsupportedModel) as error:
            assert "without tools" in str(error) or "refuse" in str(error), file.stem
            refused.append(f"{file.stem}: {error}")
            continue
        marks = marks_of(own)
        for text in prompts:
            assert text.endswith(closing), file.stem
            assert marks is None or marks.split(text).answer is not None, file.stem
            ended = marks is None or marks.split(text[-200:]).thought or options or closing
            assert ended, f"{file.stem}: the model may open a thought"
        asked += 1
    print(f"{asked} asked, {len(refused)} refused:", *refused, sep="\n")
    assert asked > 4 * len(refused)
