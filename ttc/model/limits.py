"""What a model can take: its vocabulary, its context, and the tokens that end a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from ttc.errors import ContextExceeded, InvalidInput, refusing
from ttc.model.extra_arguments import all_chosen
from ttc.model.generation_settings import end_tokens

CHANGING = ("longrope", "dynamic")
"""Kinds of rotary positions whose frequencies change with the length of a pass."""


@dataclass
class ModelLimits:
    """vocab_size: tokens are numbers below it. context_length: the most tokens of a branch, None
    for no limit. eos_ids: the tokens that end a sequence, by the model's generation_config.
    because: why the context is shorter than the model's own, for messages."""

    vocab_size: int
    context_length: int | None
    eos_ids: frozenset[int]
    because: str = ""

    @classmethod
    def of(cls, model: Any) -> ModelLimits:
        config = model.config.get_text_config()
        eos_ids = end_tokens(getattr(model, "generation_config", None))
        longest, because = _context(config)
        chosen = all_chosen(model)
        if chosen is not None and (longest is None or longest > chosen):
            longest = chosen
            because = (
                f" (of more than {chosen} tokens its layers attend to a choice, which the engine "
                "does not compute)"
            )
        return cls(config.vocab_size, longest, eos_ids, because)

    def checked(self, tokens: Sequence[int], what: str) -> list[int]:
        """The tokens as a list; `what` names them in messages. Raises InvalidInput for none, and
        for what is no token of the vocabulary."""
        if isinstance(tokens, str | bytes):
            raise InvalidInput(
                f"the {what} is text, {tokens[:40]!r}; give token numbers (engine.encode makes "
                "them)"
            )
        with refusing(
            TypeError,
            f"the {what} is no list of token numbers ({{error}}); engine.encode makes them",
        ):
            tokens = [index(token) for token in tokens]
        if not tokens:
            raise InvalidInput(f"the {what} is empty; give at least one token")
        for token in (min(tokens), max(tokens)):
            if not 0 <= token < self.vocab_size:
                raise InvalidInput(
                    f"the {what} holds token {token}, outside the model's vocabulary of "
                    f"{self.vocab_size}; use the model's own tokenizer"
                )
        return tokens

    def check_context(self, length: int) -> None:
        if self.context_length is not None and length > self.context_length:
            raise ContextExceeded(
                f"{length} tokens are more than the model's context of {self.context_length}"
                f"{self.because}; shorten the prompt or use a model with a longer context"
            )

    def check_prompt(self, length: int) -> None:
        self.check_context(length)
        if length == self.context_length:
            raise ContextExceeded(
                f"the prompt fills the model's context of {length} tokens{self.because} and leaves "
                "no room to generate; shorten it or use a model with a longer context"
            )

    def left(self, tokens: int) -> int | None:
        return None if self.context_length is None else self.context_length - tokens


def context_length(config: Any) -> int | None:
    """The most tokens of a branch that the model serves exactly, None for no limit."""
    return _context(config)[0]


def _context(config: Any) -> tuple[int | None, str]:
    """The context, and why it is shorter than the configuration's.

    Rotary frequencies that change with the length of a pass hold up to the model's original length
    alone: a pass of the engine carries rows of many branches, whose lengths are their own.
    """
    stated = getattr(config, "max_position_embeddings", None)
    stated = getattr(config, "max_seq_len", None) if stated is None else stated
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    longest = stated
    because = ""
    for part in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        kind = part.get("rope_type", part.get("type"))
        original = part.get("original_max_position_embeddings")
        original = original or getattr(config, "original_max_position_embeddings", None)
        if kind in CHANGING and longest is not None and original and original < longest:
            longest = original
            because = (
                f" (its configuration states {stated}, but its rotary frequencies, {kind!r}, "
                f"change for all tokens of a text that is longer than {longest}, so that branches "
                "of different lengths could share nothing)"
            )
    return longest, because
