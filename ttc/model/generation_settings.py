"""The settings of a model's generation_config: what each asks for, honoured as transformers does, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any

import torch
from transformers.generation import logits_process as hf

from ttc.errors import UnsupportedModel
from ttc.model.processors import (
    Biases,
    ForcedFirst,
    ForcedLast,
    InvalidRemoved,
    LeastLength,
    LengthDecay,
    NoRepeatNGram,
    Processor,
    Repetition,
    Suppressed,
    SuppressedFirst,
)

WAY_OUT = (
    "To generate without these settings give generation_settings=False in Python, model.generation_settings=false on "
    "the command line; or change model.generation_config before the engine gets the model"
)


@dataclass(frozen=True)
class GenerationSettings:
    """What is honoured of a model's generation_config.

    asked: the settings by transformers' names. processors: what they do to logits, in transformers' order.
    """

    asked: Mapping[str, Any] = field(default_factory=dict)
    processors: tuple[Processor, ...] = ()

    @classmethod
    def of(cls, config: Any, vocab_size: int) -> GenerationSettings:
        """From a transformers `GenerationConfig`, or None for no settings.

        Settings that a search makes itself are left to it: temperature, top_k, top_p, min_p, do_sample, how many texts
        and how long they may be. Raises UnsupportedModel for a setting that changes what `generate` writes and that the
        engine does not have, and for a value that transformers does not take.
        """
        if config is None:
            return cls()
        _refuse(config)
        asked: dict[str, Any] = {}
        processors: list[Processor] = []
        for name, is_set, made in HONOURED:
            value = getattr(config, name, None)
            if value is None or not is_set(value):
                continue
            try:
                does = list(made(value, config))
            except (TypeError, ValueError, IndexError) as error:
                raise UnsupportedModel(
                    f"the model's generation_config sets {name}={value!r}, which cannot be used ({error}). {WAY_OUT}"
                ) from error
            if does:
                asked[name] = value
                processors += does
        _check_tokens(asked, vocab_size)
        return cls(asked, tuple(processors))

    def describe(self) -> str:
        """As NAME=VALUE, NAME=VALUE."""
        return ", ".join(f"{name}={_short(value)}" for name, value in self.asked.items())


def end_tokens(config: Any) -> frozenset[int]:
    """The tokens that end a text: those that a `GenerationConfig` lists, whatever the tokenizer says.

    None listed, none ends it, as in transformers' `generate`. Raises UnsupportedModel for what is no token's number.
    """
    listed = getattr(config, "eos_token_id", None)
    if listed is None:
        return frozenset()
    if isinstance(listed, torch.Tensor):
        listed = listed.tolist()
    try:
        return frozenset(map(index, listed if isinstance(listed, list | tuple) else [listed]))
    except TypeError as error:
        raise UnsupportedModel(
            f"the model's generation_config sets eos_token_id={listed!r}, which are no numbers of tokens ({error}); "
            "set model.generation_config.eos_token_id to a number or a list of numbers"
        ) from error


# ---------------------------------------------------------------- refused

Asks = Callable[[Any], bool]


def _is_set(value: Any) -> bool:
    return value is not None


BEAMS = "the engine has no beam search of its own, a search has (search=beam_search)"
ASSISTED = "it changes what is written for speed, and the engine has no such assistant"
FILTER = "it leaves tokens out of a sample in a way that no search's sampling has"

REFUSED: Mapping[str, tuple[Asks, str]] = {
    "guidance_scale": (lambda scale: scale != 1, "guidance needs a second, unconditional run for each text"),
    "num_beams": (lambda beams: beams > 1, BEAMS),
    "num_beam_groups": (lambda groups: groups > 1, BEAMS),
    "constraints": (_is_set, BEAMS),
    "force_words_ids": (_is_set, BEAMS),
    "penalty_alpha": (lambda alpha: alpha > 0, "the engine has no contrastive search"),
    "dola_layers": (_is_set, "the engine does not contrast layers"),
    "watermarking_config": (_is_set, "the engine writes no watermark"),
    "token_healing": (bool, "it changes the prompt's tokens; a search's prompt stays as it is"),
    "stop_strings": (bool, "strings that end a text are a task's: give them as dataset.end, in Python as `end`"),
    "max_time": (_is_set, "what is written would depend on the machine; run.max_wall_s is a budget"),
    "typical_p": (lambda p: p < 1, FILTER),
    "top_h": (_is_set, FILTER),
    "epsilon_cutoff": (lambda cut: 0 < cut < 1, FILTER),
    "eta_cutoff": (lambda cut: 0 < cut < 1, FILTER),
    "is_assistant": (bool, "the model would stop where it is not sure"),
    "assistant_ensemble_weight": (_is_set, ASSISTED),
    "cache_implementation": (lambda kind: kind == "quantized", "the engine keeps keys and values as they are"),
}
"""Settings that change what `generate` writes: when they do, and why the engine does not have them."""


def _refuse(config: Any) -> None:
    for name, (asks, why) in REFUSED.items():
        value = getattr(config, name, None)
        if value is not None and asks(value):
            raise UnsupportedModel(
                f"the model's generation_config sets {name}={_short(value)}, which would change what is "
                f"written: {why}. {WAY_OUT}"
            )


# ---------------------------------------------------------------- honoured

Made = Callable[[Any, Any], Iterator[Processor]]
"""From a setting's value and the whole `GenerationConfig` to what it does."""


def _sequence_bias(value: Any, config: Any) -> Iterator[Processor]:
    yield Biases(hf.SequenceBiasLogitsProcessor(value))


def _encoder_repetition(value: Any, config: Any) -> Iterator[Processor]:
    hf.RepetitionPenaltyLogitsProcessor(value)  # checks it
    yield Repetition(1 / value, of_prompt=True)


def _repetition(value: Any, config: Any) -> Iterator[Processor]:
    hf.RepetitionPenaltyLogitsProcessor(value)
    yield Repetition(value)


def _no_repeat(value: Any, config: Any) -> Iterator[Processor]:
    yield NoRepeatNGram(hf.NoRepeatNGramLogitsProcessor(value).ngram_size)


def _encoder_no_repeat(value: Any, config: Any) -> Iterator[Processor]:
    yield NoRepeatNGram(hf.NoRepeatNGramLogitsProcessor(value).ngram_size, of_prompt=True)


def _bad_words(value: Any, config: Any) -> Iterator[Processor]:
    yield Biases(hf.NoBadWordsLogitsProcessor(value, sorted(end_tokens(config)) or None))


def _least_length(value: Any, config: Any) -> Iterator[Processor]:
    """`min_new_tokens` takes the place of `min_length`, and without an end token neither means anything."""
    if config.min_new_tokens is None and (ends := _ends(config)):
        yield LeastLength(hf.MinLengthLogitsProcessor(value, list(ends)).min_length, False, ends)


def _least_new_tokens(value: Any, config: Any) -> Iterator[Processor]:
    if ends := _ends(config):
        yield LeastLength(hf.MinLengthLogitsProcessor(value, list(ends)).min_length, True, ends)


def _forced_bos(value: Any, config: Any) -> Iterator[Processor]:
    yield ForcedFirst(int(value))


def _forced_eos(value: Any, config: Any) -> Iterator[Processor]:
    longest = config.max_new_tokens or config.max_length
    if longest is None:
        raise ValueError(
            "it ends a text at generate's longest, and this file sets neither max_new_tokens nor max_length; searches "
            "grow texts step by step"
        )
    tokens = tuple(value) if isinstance(value, list | tuple) else (value,)
    hf.ForcedEOSTokenLogitsProcessor(longest, list(tokens))
    yield ForcedLast(longest, config.max_new_tokens is not None, tokens)


def _remove_invalid(value: Any, config: Any) -> Iterator[Processor]:
    yield InvalidRemoved()


def _decay(value: Any, config: Any) -> Iterator[Processor]:
    start, factor = value
    if not (ends := _ends(config)):
        raise ValueError("it makes the end token likelier, and eos_token_id names none")
    yield LengthDecay(int(start), float(factor), ends)


def _suppress(value: Any, config: Any) -> Iterator[Processor]:
    yield Suppressed(tuple(map(int, value)))


def _begin_suppress(value: Any, config: Any) -> Iterator[Processor]:
    yield SuppressedFirst(tuple(map(int, value)), config.forced_bos_token_id is not None)


def _ends(config: Any) -> tuple[int, ...]:
    return tuple(sorted(end_tokens(config)))


def _is_penalty(value: Any) -> bool:
    return bool(value != 1.0)


def _is_count(value: Any) -> bool:
    return bool(value > 0)


HONOURED: tuple[tuple[str, Asks, Made], ...] = (
    ("sequence_bias", _is_set, _sequence_bias),
    ("encoder_repetition_penalty", _is_penalty, _encoder_repetition),
    ("repetition_penalty", _is_penalty, _repetition),
    ("no_repeat_ngram_size", _is_count, _no_repeat),
    ("encoder_no_repeat_ngram_size", _is_count, _encoder_no_repeat),
    ("bad_words_ids", _is_set, _bad_words),
    ("min_length", _is_count, _least_length),
    ("min_new_tokens", _is_count, _least_new_tokens),
    ("forced_bos_token_id", _is_set, _forced_bos),
    ("forced_eos_token_id", _is_set, _forced_eos),
    ("remove_invalid_values", lambda value: value is True, _remove_invalid),
    ("exponential_decay_length_penalty", _is_set, _decay),
    ("suppress_tokens", _is_set, _suppress),
    ("begin_suppress_tokens", _is_set, _begin_suppress),
)
"""(setting, when it asks for something, what it does), in the order of `GenerationMixin._get_logits_processor`. What
`renormalize_logits` does comes last there and changes no choice."""


def _check_tokens(asked: Mapping[str, Any], vocab_size: int) -> None:
    """Raise UnsupportedModel for a forced or biased token that the model does not have."""
    bias = asked.get("sequence_bias", {})
    tokens: dict[str, list[int]] = {
        "sequence_bias": [t for part in bias for t in (part[0] if isinstance(bias, list) else part)],
        "bad_words_ids": [t for words in asked.get("bad_words_ids", ()) for t in words],
    }
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        value = asked.get(name, [])
        tokens[name] = [value] if isinstance(value, int) else list(value)
    for name, ids in tokens.items():
        if wrong := [token for token in ids if not 0 <= token < vocab_size]:
            raise UnsupportedModel(
                f"the model's generation_config names token {wrong[0]} in {name}, beyond the vocabulary of "
                f"{vocab_size}. {WAY_OUT}"
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
