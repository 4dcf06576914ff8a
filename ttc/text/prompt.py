"""From a question to the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from ttc.errors import InvalidInput

STEP_BY_STEP = "{question}\nThink step by step, and end with 'The answer is N.', N being the final answer."


@dataclass(frozen=True)
class PromptTemplate:
    """How a question is put to the model.

    instruction: the user's words, `{question}` in them replaced by the question. examples: solved (question, answer)
    pairs that come first. chat: use the tokenizer's chat template; None for when it has one. Without it examples
    and question are written as "Question: ...\\nAnswer:". options: what else the chat template takes.
    """

    instruction: str = STEP_BY_STEP
    system: str | None = None
    examples: tuple[tuple[str, str], ...] = ()
    chat: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "{question}" not in self.instruction:
            raise InvalidInput(f"the instruction {self.instruction!r} must hold {{question}}, where the question goes")

    def text(self, question: str, tokenizer: Any) -> str:
        """The prompt as text."""
        if not question.strip():
            raise InvalidInput("the question is empty; give some text to solve")
        turns = [(self.instruction.replace("{question}", q), a) for q, a in (*self.examples, (question, ""))]
        has_template = getattr(tokenizer, "chat_template", None) is not None
        if self.chat and not has_template:
            raise InvalidInput("chat=true was asked for, but the tokenizer has no chat template; set chat to null")
        if has_template and self.chat is not False:
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
        head = f"{self.system}\n\n" if self.system else ""
        return head + "\n\n".join(
            f"Question: {q}\nAnswer:{a if not a or a[0].isspace() else ' ' + a}" for q, a in turns
        )

    def tokens(self, question: str, tokenizer: Any) -> list[int]:
        """The prompt as tokens."""
        return prompt_tokens(self.text(question, tokenizer), tokenizer)


def prompt_tokens(text: str, tokenizer: Any) -> list[int]:
    """A prompt's text as tokens, with a beginning-of-sequence token where the tokenizer wants one and none stands."""
    tokens = list(tokenizer.encode(text, add_special_tokens=False))
    bos = getattr(tokenizer, "bos_token_id", None)
    wanted = list(tokenizer.encode("", add_special_tokens=True))[:1]
    if bos is not None and wanted == [bos] and tokens[:1] != [bos]:
        tokens = [bos, *tokens]
    return tokens
