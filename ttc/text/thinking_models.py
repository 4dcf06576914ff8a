"""The thinking marks of models: of known ones, and as a chat template writes a thought."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ttc.errors import InvalidInput
from ttc.text.chat import (
    ANSWER,
    QUESTION,
    UNANSWERED,
    chat_text,
    common_start,
    is_token,
    template_text,
)
from ttc.text.thinking_marks import Header, ThinkingMarks


@dataclass(frozen=True)
class Family:
    """Models that think alike.

    signs: all stand in the chat template, or are tokens of the vocabulary. written: they are
    ordinary words, so that the chat template alone tells.
    """

    marks: ThinkingMarks
    signs: tuple[str, ...]
    written: bool = False


TAGS = ThinkingMarks("<think>", "</think>")
"""DeepSeek-R1, Qwen3, QwQ, SmolLM3, GLM-4.5, MiniMax-M2, Phi-4-reasoning, OLMo 3 Think, Nemotron,
ERNIE 4.5 and EXAONE 4."""

FAMILIES = (
    Family(  # models trained as DeepSeek-R1-Zero was, on its system prompt
        ThinkingMarks("<think>", "</think>", ("<answer>", "</answer>")),
        ("</think>", "<answer>"),
        written=True,
    ),
    Family(  # K2-Think V2 and K2-V2: a mark for each effort
        ThinkingMarks(
            ("<think>", "<think_fast>", "<think_faster>"),
            ("</think>", "</think_fast>", "</think_faster>"),
        ),
        ("<think_fast>",),
    ),
    Family(  # K2-Horizon
        ThinkingMarks(
            ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
            ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        ),
        ("<ifm|think>",),
    ),
    Family(TAGS, ("</think>",)),
    Family(  # Apriel 1.5, whose template names <thinking> for calls, and 1.6
        ThinkingMarks(
            "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", ("[END FINAL RESPONSE]",)
        ),
        ("[BEGIN FINAL RESPONSE]",),
        written=True,
    ),
    Family(  # gpt-oss: channels of the harmony format
        ThinkingMarks(
            (
                Header("<|channel|>analysis", "<|message|>"),
                Header("<|channel|>commentary", "<|message|>"),
            ),
            Header("<|channel|>final", "<|message|>"),
            ("<|start|>assistant",),
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
        ("<|channel|>", "<|message|>"),
    ),
    Family(ThinkingMarks("[THINK]", "[/THINK]"), ("[/THINK]",)),  # Magistral
    Family(  # Granite 3.2
        ThinkingMarks(
            ("Here is my thought process:", "Here's my thought process:"),
            ("Here is my response:", "Here's my response:"),
        ),
        ("Here is my thought process:", "Here is my response:"),
        written=True,
    ),
    Family(ThinkingMarks("<thought>", "</thought>"), ("</thought>",)),  # EXAONE Deep
    Family(ThinkingMarks("<seed:think>", "</seed:think>"), ("</seed:think>",)),  # Seed-OSS
    Family(  # Gemma 4
        ThinkingMarks(("<|channel>thought\n", "<|channel>"), "<channel|>"),
        ("<|channel>", "<channel|>"),
    ),
    Family(  # Command R7B and Command A Reasoning; with TEXT for RESPONSE, the later Cohere2 MoE
        ThinkingMarks(
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        ),
        ("<|END_THINKING|>",),
    ),
    Family(ThinkingMarks("<|inner_prefix|>", "<|inner_suffix|>"), ("<|inner_suffix|>",)),  # Apertus
    Family(ThinkingMarks("◁think▷", "◁/think▷"), ("◁/think▷",)),  # Kimi-VL-Thinking
    Family(  # LongCat-Flash-Thinking
        ThinkingMarks("<longcat_think>", "</longcat_think>"), ("</longcat_think>",)
    ),
    Family(ThinkingMarks("<mm:think>", "</mm:think>"), ("</mm:think>",)),  # MiniMax-M3
    Family(  # Kimi K3
        ThinkingMarks(
            "<|open|>think<|sep|>",
            "<|close|>think<|sep|>",
            ("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            "<|close|>think<|sep|><|open|>response<|sep|>",
        ),
        ("<|open|>", "<|close|>", "<|sep|>"),
    ),
    Family(  # Sky-T1, OpenThinker, Bespoke-Stratos
        ThinkingMarks(
            "<|begin_of_thought|>",
            "<|end_of_thought|>",
            ("<|begin_of_solution|>", "<|end_of_solution|>"),
        ),
        ("<|begin_of_thought|>",),
    ),
    Family(  # models trained on <reasoning> and <answer>, as many by GRPO
        ThinkingMarks("<reasoning>", "</reasoning>", ("<answer>", "</answer>")),
        ("</reasoning>",),
    ),
    Family(  # Reflection and models trained on Claude's form
        ThinkingMarks("<thinking>", "</thinking>", ("<output>", "</output>")),
        ("</thinking>",),
    ),
    Family(TAGS, ("<think>",), written=True),  # a template that only opens the thought
)
"""More particular ones first. Sources: the models' chat templates, and vLLM's reasoning parsers."""


def _all_tags() -> ThinkingMarks:
    tagged = [family.marks for family in FAMILIES if not family.written]

    def all_of(name: str) -> tuple[str, ...]:
        marks = chain.from_iterable(getattr(each, name) for each in tagged)
        return tuple(dict.fromkeys(marks))

    return ThinkingMarks(all_of("begin"), all_of("end"), all_of("wraps"))


ANY = _all_tags()
"""The marks of all known models that no other text holds, for texts of an unknown model."""


def ends_some_thought(text: str | None) -> bool:
    """Whether a text holds a mark with which some known model ends a thought."""
    return any(cut.thinks is False for cut in ANY.cuts(text or ""))


def marks_of(tokenizer: Any) -> ThinkingMarks | None:
    """The marks of a tokenizer's model: of a known family by its chat template, else as the
    template writes a thought, else by the vocabulary, else by the tag that a prompt opens; None for
    none."""
    template = template_text(tokenizer)
    for family in FAMILIES:
        if all(sign in template for sign in family.signs):
            return family.marks
    if any(key in template for key in THOUGHT_KEYS):
        learned = _written_marks(tokenizer)
        if learned is not None:
            return learned
    for family in FAMILIES:
        if not family.written and all(is_token(sign, tokenizer) for sign in family.signs):
            return family.marks
    return _opened_marks(tokenizer) if template else None


THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Where chat templates look for the thought of a message."""

THOUGHT = "THE-THOUGHT"


def _written_marks(tokenizer: Any) -> ThinkingMarks | None:
    """What a chat template writes around the thought of a message; None where it writes none."""
    answer = {"role": "assistant", "content": ANSWER}
    try:
        prompt = chat_text(QUESTION, tokenizer)
        plain = chat_text([*QUESTION, answer], tokenizer, UNANSWERED)
        thought = {**answer, **dict.fromkeys(THOUGHT_KEYS, THOUGHT)}
        text = chat_text([*QUESTION, thought], tokenizer, UNANSWERED)
    except InvalidInput:
        return None
    before, written, after = text.partition(THOUGHT)
    end, answered, _ = after.partition(ANSWER)
    if not written or not answered or not end.strip():
        return None
    head = plain.removeprefix(prompt).partition(ANSWER)[0].strip()
    tag = _CLOSING_TAG.match(end.strip())
    if tag is not None and before.rstrip().endswith(f"<{tag[1]}>"):
        return ThinkingMarks(f"<{tag[1]}>", tag[0])
    shared = prompt if before.startswith(prompt) else common_start(before, plain)
    begin = before.removeprefix(shared).strip()
    wraps = (
        (head,) if head and plain.startswith(prompt) and head not in (begin, end.strip()) else ()
    )
    vague = [mark for mark in (begin, end.strip()) if mark and _in_any_text(mark)]
    if vague or begin == end.strip():
        told = f"{vague[0]!r} around" if begin != end.strip() else f"{begin!r} before and after"
        raise InvalidInput(
            f"the chat template writes {told} a thought, which may hold it too; name marks with "
            "thinking_marks, or false for none"
        )
    return ThinkingMarks((begin,) if begin else (), end.strip(), wraps)


def _in_any_text(mark: str) -> bool:
    """Whether a mark is one or two plain words, or signs alone, as those of a fence."""
    words = re.findall(r"[^\W_]+", mark)
    tagged = re.search(r"[<\[{]|[^\W_](_|[^\w\s'.,-])[^\W_]|[^\w\0-\x7f]", mark)
    return (not words and mark.isascii()) or (len(words) < 3 and not tagged)


def _opened_marks(tokenizer: Any) -> ThinkingMarks | None:
    """The tag that a prompt ends with, where it stands before no answer of the past and is no name
    of an answer; None where it ends with none."""
    try:
        prompt = chat_text(QUESTION, tokenizer)
        answer = {"role": "assistant", "content": ANSWER}
        past = chat_text([*QUESTION, answer], tokenizer, UNANSWERED)
    except InvalidInput:
        return None
    tag = _OPENING_TAG.search(prompt)
    if tag is None or tag[1].lower() in _OF_ANSWERS or tag[0].strip() in past:
        return None
    return ThinkingMarks(f"<{tag[1]}>", f"</{tag[1]}>")


_OF_ANSWERS = ("ai", "answer", "assistant", "bot", "model", "output", "response", "solution")
_OPENING_TAG = re.compile(r"<([^</>\s|]+)>\s*\Z")
_CLOSING_TAG = re.compile(r"</([^<>\s]+)>")
