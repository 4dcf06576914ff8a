"""A chat as a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ttc.errors import InvalidInput
from ttc.text.chat import Message, has_template
from ttc.text.prompt import PromptTemplate


@dataclass(frozen=True)
class Conversation(PromptTemplate):
    """A chat whose last message, the user's, is the question. A search that varies the instruction
    varies this message.

    earlier: the messages before it, each with its role and content.
    """

    instruction: str = "{question}"
    earlier: tuple[Mapping[str, str], ...] = ()

    what: ClassVar[str] = "the last message"
    way_out: ClassVar[str] = (
        "send a system message first, if any, then the user's and the assistant's in turn"
    )

    def uses_chat(self, tokenizer: Any) -> bool:
        """Always. Raises InvalidInput where the model has no chat template."""
        if not has_template(tokenizer):
            raise InvalidInput(
                "the model has no chat template; send its whole prompt to /v1/completions"
            )
        return True

    def messages(self, question: str) -> list[Message]:
        return [*self.earlier, *super().messages(question)]
