"""What a model can take: its vocabulary, its context, and the tokens that end a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from ttc.errors import ContextExceeded, InvalidInput
from ttc.model.extra_arguments import all_chosen
from ttc.model.generation_settings import end_tokens

CHANGING = "longrope", "dynamic"
"""Kinds of rotary positions whose frequencies change with the length of a pass."""


@dataclass
class ModelLimits:
    """vocab_size: tokens are numbers below it. context_length: the most tokens of a branch, None for no limit.
    eos_ids: the tokens that end a sequence, those of the model's generation_config. because: why the context is shorter
    than the model's own, for messages."""

    vocab_size: int
    context_length: int | None
    eos_ids: frozenset[int]
    because: str = ""

    @classmethod
    def of(cls, model: Any) -> ModelLimits:
        config = model.config.get_text_config()
        longest, chosen = context_length(config), all_chosen(model)
        eos_ids = end_tokens(getattr(model, "generation_config", None))
        if chosen is None or (longest is not None and longest <= chosen):
            return cls(config.vocab_size, longest, eos_ids, _because_of_rope(config, longest))
        because = f" (of more than {chosen} tokens its layers attend to a choice, which the engine does not compute)"
        return cls(config.vocab_size, chosen, eos_ids, because)

    def checked(self, tokens: Sequence[int], what: str) -> list[int]:
        """The tokens as a list. Raises InvalidInput for none, for what is no token, and for tokens beyond the
        vocabulary; `what` names them in the message."""
        if isinstance(tokens, str | bytes):
            raise InvalidInput(f"the {what} is text, {tokens[:40]!r}; give token numbers (engine.encode makes them)")
        try:
            tokens = [index(token) for token in tokens]
        except TypeError as error:
            raise InvalidInput(f"the {what} is no list of token numbers ({error}); engine.encode makes them") from error
        if not tokens:
            raise InvalidInput(f"the {what} is empty; give at least one token")
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise InvalidInput(
                f"the {what} holds token {max(tokens, key=lambda t: abs(t - self.vocab_size / 2))}, outside the "
                f"model's vocabulary of {self.vocab_size}; use the model's own tokenizer"
            )
        return tokens

    def check_context(self, length: int) -> None:
        """Raise ContextExceeded unless the model's context holds `length` tokens."""
        if self.context_length is not None and length > self.context_length:
            raise ContextExceeded(
                f"{length} tokens are more than the model's context of {self.context_length}{self.because}; shorten "
                "the prompt or use a model with a longer context"
            )

    def check_prompt(self, length: int) -> None:
        """Raise ContextExceeded unless a prompt of `length` tokens leaves room to generate."""
        self.check_context(length)
        if length == self.context_length:
            raise ContextExceeded(
                f"the prompt fills the model's context of {self.context_length} tokens{self.because} and leaves no "
                "room to generate; shorten it or use a model with a longer context"
            )

    def left(self, tokens: int) -> int | None:
        """How many tokens a branch of `tokens` tokens can still grow by, None for no limit."""
        return None if self.context_length is None else self.context_length - tokens


def context_length(config: Any) -> int | None:
    """The most tokens of a branch that the model serves exactly, None for no limit.

    Rotary frequencies that change with the length of a pass (`longrope`, `dynamic`) hold up to the model's original
    length alone: a pass of the engine carries rows of many branches and chunks, whose lengths are their own.
    """
    longest = _stated_length(config)
    for part in _rope(config):
        if _kind(part) in CHANGING and longest is not None:
            original = part.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            longest = min(longest, original or longest)
    return longest


def _stated_length(config: Any) -> int | None:
    names = "max_position_embeddings", "max_seq_len"
    return next((n for name in names if (n := getattr(config, name, None)) is not None), None)


def _rope(config: Any) -> list[dict[str, Any]]:
    """The settings of rotary positions: those of the model, and of its kinds of layers."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [rope, *(part for part in rope.values() if isinstance(part, dict))]


def _kind(rope: dict[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type"))


def _because_of_rope(config: Any, longest: int | None) -> str:
    """Why the context is shorter than the configuration's, "" where it is not."""
    stated = _stated_length(config)
    kinds = [kind for part in _rope(config) if (kind := _kind(part)) in CHANGING]
    if not kinds or stated is None or longest is None or longest >= stated:
        return ""
    return (
        f" (its configuration states {stated}, but its rotary frequencies, {kinds[0]!r}, change for "
        f"all tokens of a text that is longer than {longest}, so that branches of different lengths "
        "could share nothing)"
    )
