"""A chat as a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ttc.errors import InvalidInput
from ttc.text.chat import has_template
from ttc.text.prompt import PromptTemplate
from ttc.text.roles import INSTRUCTING, Message


@dataclass(frozen=True)
class Conversation(PromptTemplate):
    """A chat whose last message, the user's or a tool's, is the question. A search that varies the
    instruction varies this message.

    earlier: the messages before it, each with its role and content. last: what the last one has
    beside its content.
    """

    instruction: str = "{question}"
    earlier: tuple[Message, ...] = ()
    last: Mapping[str, Any] = field(default_factory=lambda: {"role": "user"})

    what: ClassVar[str] = "the last message"
    way_out: ClassVar[str] = (
        "send the user's and the assistant's messages in turn, the user's first"
    )

    def uses_chat(self, tokenizer: Any) -> bool:
        """Always. Raises InvalidInput where the model has no chat template."""
        if not has_template(tokenizer):
            raise InvalidInput(
                "the model has no chat template; send its whole prompt to /v1/completions"
            )
        return True

    def messages(self, question: str) -> list[Message]:
        *before, asked = super().messages(question)
        earlier = list(self.earlier)
        if before and earlier and earlier[0]["role"] in INSTRUCTING:
            both = f"{earlier[0]['content']}\n\n{before.pop(0)['content']}"
            earlier[0] = {**earlier[0], "content": both}
        return [*before, *earlier, {**asked, **self.last}]
