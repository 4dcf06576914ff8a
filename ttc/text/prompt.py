"""From a question to the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from ttc.checks import check_fields, check_kind
from ttc.errors import InvalidInput

STEP_BY_STEP = "{question}\nThink step by step, and end with 'The answer is N.', N being the final answer."

_ANSWER = "\x00answer\x00"


@dataclass(frozen=True)
class PromptTemplate:
    """How a question is put to the model.

    instruction: the user's words, `{question}` in them replaced by the question. examples: solved (question, answer)
    pairs that come first. chat: use the tokenizer's chat template; None for when it has one. Without it examples
    and question are written as "Question: ...\\nAnswer:". raw: the instruction is the whole prompt, as it stands, with
    neither of the two around it. options: what else the chat template takes.
    """

    instruction: str = STEP_BY_STEP
    system: str | None = None
    examples: tuple[tuple[str, str], ...] = ()
    chat: bool | None = None
    raw: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        check_kind("options", self.options, isinstance(self.options, Mapping), "a dictionary")
        if own := self.options.keys() & {"tokenize", "add_generation_prompt", "conversation"}:
            raise InvalidInput(f"options holds {min(own)!r}, which is set here; leave it out")
        pairs = isinstance(self.examples, Sequence) and all(map(_is_pair, self.examples))
        check_kind("examples", self.examples, pairs, "pairs of texts, as ((question, answer), ...)")
        if "{question}" not in self.instruction:
            raise InvalidInput(f"the instruction {self.instruction!r} must hold {{question}}, where the question goes")
        if self.raw and self.chat:
            raise InvalidInput("raw=true and chat=true exclude each other: a raw prompt goes through no chat template")

    def text(self, question: str, tokenizer: Any) -> str:
        """The prompt as text. Raises InvalidInput for a question that is no text, or that no tokenizer can read."""
        check_text(question, "the question")
        turns = [(self.instruction.replace("{question}", q), a) for q, a in (*self.examples, (question, ""))]
        has_template = getattr(tokenizer, "chat_template", None) is not None
        if self.chat and not has_template:
            raise InvalidInput("chat=true was asked for, but the tokenizer has no chat template; set chat to null")
        if has_template and self.chat is not False and not self.raw:
            messages = [{"role": "system", "content": self.system}] if self.system else []
            for user, assistant in turns:
                messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
            try:
                return str(
                    tokenizer.apply_chat_template(
                        messages[:-1], tokenize=False, add_generation_prompt=True, **self.options
                    )
                )
            except TemplateError as error:
                raise InvalidInput(
                    f"the tokenizer's chat template refuses the prompt: {error}; leave the system text or the examples "
                    "out, or set chat to false"
                ) from error
        asked = [q if self.raw else f"Question: {q}\nAnswer:" for q, _ in turns]
        written = [q + _answer(q, a) for q, (_, a) in zip(asked, turns, strict=True)]
        return (f"{self.system}\n\n" if self.system else "") + "\n\n".join(written)

    def tokens(self, question: str, tokenizer: Any) -> list[int]:
        """The prompt as tokens."""
        return prompt_tokens(self.text(question, tokenizer), tokenizer)

    def next_turn(self, words: str, tokenizer: Any) -> str:
        """What follows the model's answer when the user goes on with `words`: the end of its turn, the words, and the
        start of its next turn."""
        text = None if self.chat is False or self.raw else next_turn(words, tokenizer, self.options)
        return f"\n\nQuestion: {words}\nAnswer:" if text is None else text


def next_turn(words: str, tokenizer: Any, options: Mapping[str, Any] | None = None) -> str | None:
    """What the tokenizer's chat template puts between an answer of the model and its next one, the user's `words` in
    it. None without a chat template."""
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": words},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **(options or {}))
    return str(text).rpartition(_ANSWER)[2]


def _is_pair(example: Any) -> bool:
    return isinstance(example, list | tuple) and len(example) == 2 and all(isinstance(part, str) for part in example)


def _answer(asked: str, answer: str) -> str:
    """An example's answer as it follows what asks for it, set off by a space where neither has one."""
    apart = not answer or answer[0].isspace() or asked[-1].isspace()
    return answer if apart else f" {answer}"


def check_text(value: Any, what: str) -> None:
    """Raise InvalidInput unless `value` is text that is not empty and that a tokenizer can read."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is {value!r}, of type {type(value).__name__}; give it as text")
    if not value.strip():
        raise InvalidInput(f"{what} is empty; give some text to solve")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} holds {value[error.start]!a} at character {error.start}, half of a pair that stands for one "
            "sign (a lone surrogate); the text was cut or decoded wrongly, so make the file again"
        ) from error


def prompt_tokens(text: str, tokenizer: Any) -> list[int]:
    """A prompt's text as tokens, with a beginning-of-sequence token where the tokenizer wants one and none stands."""
    tokens = list(tokenizer.encode(text, add_special_tokens=False))
    bos = getattr(tokenizer, "bos_token_id", None)
    wanted = list(tokenizer.encode("", add_special_tokens=True))[:1]
    if bos is not None and wanted == [bos] and tokens[:1] != [bos]:
        tokens = [bos, *tokens]
    return tokens
