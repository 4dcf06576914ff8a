"""Whether a model thinks before it answers, as its chat template lets one choose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ttc.errors import InvalidInput
from ttc.text.chat import ANSWER, QUESTION, chat_text, end_of_prompt, template_text
from ttc.text.prompt import PromptTemplate
from ttc.text.thinking_marks import ThinkingMarks, ends_in_thought, mark_text
from ttc.text.thinking_models import THOUGHT, THOUGHT_KEYS
from ttc.text.thoughts import Mode, Thoughts

SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates that turn thinking on and off: of Qwen3, SmolLM3 and GLM-4.5; of
Granite 3.2 and DeepSeek-V3.1."""

EFFORT = "reasoning_effort"
"""The variable that says how hard to think: of gpt-oss and others."""

NEAREST: Mapping[Mode, Mode] = {"minimal": "low", "xhigh": "high"}
"""What stands for an effort that a chat template does not know."""

_TAG = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")


def variables(tokenizer: Any) -> set[str]:
    tags = _TAG.findall(template_text(tokenizer))
    return {word for tag in tags for word in re.findall(r"\w+", _TEXT.sub("", tag))}


def switched(
    template: PromptTemplate, mode: Mode, tokenizer: Any, thoughts: Thoughts | None
) -> tuple[PromptTemplate, bool]:
    """The template with thinking on or off, and whether each thought is to be ended at once: where
    thinking is off and the chat template has no switch.

    thoughts: the model's, None for a model without any.
    Raises InvalidInput where a model is to think that has no thoughts, where the chat template does
    not take an effort, and where `template.options` say something else.
    """
    if mode == "auto":
        return template, False
    chat = template.uses_chat(tokenizer)
    if mode in ("on", "off"):
        if chat and (names := switches(tokenizer, template.options)):
            return _with(template, names[0], mode == "on", mode), False
        if mode == "on" and thoughts is None:
            raise InvalidInput(
                "thinking=on, and the model has no marks of thinking; use a model that thinks, or "
                "name its marks (thinking_marks)"
            )
        return template, mode == "off" and thoughts is not None
    if not chat or EFFORT not in variables(tokenizer):
        raise InvalidInput(
            f"thinking={mode} is for chat templates with {EFFORT}, and there is none; leave it "
            "out, or turn thinking off"
        )
    return _with(template, EFFORT, _effort(mode, template, tokenizer), mode), False


def _effort(mode: Mode, template: PromptTemplate, tokenizer: Any) -> Mode:
    """The effort, or the nearest of the usual ones where the chat template refuses it."""
    try:
        chat_text(QUESTION, tokenizer, {**template.options, EFFORT: mode})
    except InvalidInput:
        return NEAREST.get(mode, mode)
    return mode


def _with(template: PromptTemplate, name: str, value: Any, mode: Mode) -> PromptTemplate:
    current = template.options.get(name, value)
    if current != value:
        raise InvalidInput(
            f"thinking={mode} sets the chat template's {name} to {value}, and its options say "
            f"{current!r}; leave one of them out"
        )
    return replace(template, options={**template.options, name: value})


def switches(tokenizer: Any, options: Mapping[str, Any] | None = None) -> list[str]:
    """The variables with which the chat template writes another prompt where thinking is on than
    where it is off. A word that only names a message's thought is none of them."""

    def prompt(name: str, value: bool) -> str | None:
        try:
            return chat_text(QUESTION, tokenizer, {**(options or {}), name: value})
        except InvalidInput:
            return None

    named = [name for name in SWITCHES if name in variables(tokenizer)]
    return [name for name in named if prompt(name, True) != prompt(name, False)]


def without_thought(tokenizer: Any, thoughts: Thoughts | None = None) -> tuple[dict[str, Any], str]:
    """How a question is put that is to be answered at once, as Yes or No: what the chat template
    takes to leave thinking out, and what is written after it all the same: what the template puts
    before an answer, and an end of the thought that it opens or that the model would open.

    thoughts: as the search tells them, with marks that a user has set; None for the model's own.
    """
    options: dict[str, Any] = dict.fromkeys(switches(tokenizer), False)
    prompt = chat_text(QUESTION, tokenizer, options)
    lead = _before_answer(prompt, {}, tokenizer, options)
    thoughts = thoughts or Thoughts.of_model(tokenizer)
    if thoughts is None:
        return options, lead
    marks = thoughts.marks
    end = end_of_prompt(QUESTION, tokenizer, options) or ""
    cuts = [cut for cut in marks.cuts(end + lead) if cut.thinks is not None]
    if (cuts and not cuts[-1].thinks) or (not cuts and (options or lead)):
        return options, lead
    thought = dict.fromkeys(THOUGHT_KEYS, THOUGHT)
    written = _before_answer(prompt, thought, tokenizer, options).replace(THOUGHT, "")
    if written and not ends_in_thought(marks.cuts(end + written), begun=False):
        return options, written
    if cuts:
        return options, ("\n" if end.endswith("\n") else "") + f"{marks.closing}\n\n"
    return options, _empty_thought(marks)


def _empty_thought(marks: ThinkingMarks) -> str:
    if not marks.begin:
        return ""
    begin = marks.begin[0]
    if isinstance(begin, str):
        return f"{begin}\n\n{marks.closing}\n\n"
    return mark_text(marks.end[0])


def _before_answer(
    prompt: str, thought: Mapping[str, str], tokenizer: Any, options: Mapping[str, Any]
) -> str:
    """What the chat template writes between the prompt and an answer with a thought; "" where that
    is nothing but blanks, and where its answers do not follow the prompt."""
    answer = {"role": "assistant", "content": ANSWER, **thought}
    try:
        text = chat_text([*QUESTION, answer], tokenizer, options, begins_answer=False)
    except InvalidInput:
        return ""
    before, written, _ = text.rpartition(ANSWER)
    follows = bool(written) and before.startswith(prompt)
    return before.removeprefix(prompt) if follows and before.removeprefix(prompt).strip() else ""
