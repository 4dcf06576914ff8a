"""A chat as a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from ttc.errors import InvalidInput
from ttc.text.prompt import PromptTemplate, check_text


@dataclass(frozen=True)
class Conversation(PromptTemplate):
    """A chat whose last message, the user's, is the question. A search that varies the instruction varies this message.

    earlier: the messages before it, each with its role and content.
    """

    instruction: str = "{question}"
    earlier: tuple[Mapping[str, str], ...] = ()

    def text(self, question: str, tokenizer: Any) -> str:
        """The chat by the model's own template. Raises InvalidInput where it has none, or where that refuses it."""
        check_text(question, "the last message")
        if getattr(tokenizer, "chat_template", None) is None:
            raise InvalidInput("the model has no chat template; send its whole prompt to /v1/completions")
        last = {"role": "user", "content": self.instruction.replace("{question}", question)}
        messages = [*map(dict, self.earlier), last]
        try:
            return str(
                tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self.options)
            )
        except TemplateError as error:
            raise InvalidInput(
                f"the model's chat template refuses these messages: {error}; send a system message first, if any, then "
                "the user's and the assistant's in turn"
            ) from error
