"""The thinking marks of known models, and which of them a tokenizer's model uses."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from ttc.text.chat import is_token, template_text
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
    Family(
        ThinkingMarks("<think>", "</think>", ("<answer>", "</answer>")),
        ("</think>", "<answer>"),
        written=True,
    ),
    Family(TAGS, ("</think>",)),
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
    Family(  # Command A Reasoning
        ThinkingMarks(
            "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
        ),
        ("<|END_THINKING|>",),
    ),
    Family(ThinkingMarks("<|inner_prefix|>", "<|inner_suffix|>"), ("<|inner_suffix|>",)),  # Apertus
    Family(ThinkingMarks("◁think▷", "◁/think▷"), ("◁/think▷",)),  # Kimi-VL-Thinking
    Family(  # LongCat-Flash-Thinking
        ThinkingMarks("<longcat_think>", "</longcat_think>"), ("</longcat_think>",)
    ),
    Family(  # Apriel 1.5
        ThinkingMarks(
            "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", ("[END FINAL RESPONSE]",)
        ),
        ("[BEGIN FINAL RESPONSE]",),
        written=True,
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


def marks_of(tokenizer: Any) -> ThinkingMarks | None:
    """The marks of a tokenizer's model, by its chat template or its vocabulary; None for none."""
    template = template_text(tokenizer)
    for family in FAMILIES:
        if all(sign in template for sign in family.signs):
            return family.marks
    for family in FAMILIES:
        if not family.written and all(is_token(sign, tokenizer) for sign in family.signs):
            return family.marks
    return None
