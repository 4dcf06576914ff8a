"""The settings of a model's generation_config: honoured as transformers does, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, NamedTuple

import torch
from transformers.generation import logits_process as hf

from ttc.errors import UnsupportedModel, refusing
from ttc.model.processors import ByLength, NoRepeatNGram, Processor, Repetition
from ttc.sampling import Sampling

WAY_OUT = (
    "To generate without these settings give generation_settings=False in Python, "
    "model.generation_settings=false on the command line; or change model.generation_config before "
    "the engine gets the model"
)


class Drawing(NamedTuple):
    """What tokens are drawn by: processors change logits first. A repetition penalty without other
    processors is the sampling's."""

    sampling: Sampling
    processors: tuple[Processor, ...]

    @property
    def reads_texts(self) -> bool:
        """Whether it depends on the tokens before."""
        return bool(self.processors) or self.sampling.repetition_penalty not in (None, 1)


@dataclass(frozen=True)
class GenerationSettings:
    """What is honoured of a model's generation_config.

    honoured: the settings by transformers' names. processors: what they do to logits, in its order.
    """

    honoured: Mapping[str, Any] = field(default_factory=dict)
    processors: tuple[Processor, ...] = ()
    _of_samplings: dict[Sampling, Drawing] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, config: Any, vocab_size: int) -> GenerationSettings:
        """From a transformers `GenerationConfig`, or None for no settings.

        Left to a search are temperature, top_k, top_p, min_p, do_sample, how many texts and how
        long. Raises UnsupportedModel for a setting that changes what `generate` writes and that the
        engine does not have, and for a value that transformers does not take.
        """
        if config is None:
            return cls()
        for name, (asks, why) in REFUSED.items():
            value = getattr(config, name, None)
            if value is not None and asks(value):
                raise UnsupportedModel(
                    f"the model's generation_config sets {name}={_short(value)}, which would "
                    f"change what is written: {why}. {WAY_OUT}"
                )
        honoured: dict[str, Any] = {}
        processors: list[Processor] = []
        for name, (asks, make) in HONOURED.items():
            value = getattr(config, name, None)
            if value is None or not asks(value):
                continue
            with refusing(
                (TypeError, ValueError, IndexError),
                f"the model's generation_config sets {name}={value!r}, which cannot be used "
                f"({{error}}). {WAY_OUT}",
                UnsupportedModel,
            ):
                processor = make(value, config)
                if isinstance(processor, ByLength):
                    processor.make(1, torch.device("cpu"))  # checks the value
            if processor is not None:
                honoured[name] = value
                processors.append(processor)
        _check_tokens(honoured, vocab_size)
        return cls(honoured, tuple(processors))

    def drawing(self, sampling: Sampling) -> Drawing:
        """How tokens are drawn with these settings and a sampling, whose repetition penalty counts
        where both have one."""
        if sampling not in self._of_samplings:
            self._of_samplings[sampling] = self._drawing(sampling)
        return self._of_samplings[sampling]

    def _drawing(self, sampling: Sampling) -> Drawing:
        by_name = dict(zip(self.honoured, self.processors, strict=True))
        if (penalty := sampling.repetition_penalty) is not None:
            by_name["repetition_penalty"] = Repetition(penalty)
        alone = by_name.get("repetition_penalty")
        if isinstance(alone, Repetition) and (len(by_name) == 1 or alone.penalty == 1):
            del by_name["repetition_penalty"]
            sampling = replace(sampling, repetition_penalty=alone.penalty)
        return Drawing(sampling, tuple(by_name[name] for name in HONOURED if name in by_name))

    def describe(self) -> str:
        return ", ".join(f"{name}={_short(value)}" for name, value in self.honoured.items())


def end_tokens(config: Any) -> frozenset[int]:
    """The tokens that end a text: those that a `GenerationConfig` lists, none for None.

    Raises UnsupportedModel for what is no token's number.
    """
    listed = getattr(config, "eos_token_id", None)
    if listed is None:
        return frozenset()
    if isinstance(listed, torch.Tensor):
        listed = listed.tolist()
    with refusing(
        TypeError,
        f"the model's generation_config sets eos_token_id={listed!r}, which are no numbers of "
        f"tokens ({{error}}); set model.generation_config.eos_token_id to a number or a list of "
        "numbers",
        UnsupportedModel,
    ):
        return frozenset(map(index, listed if isinstance(listed, list | tuple) else [listed]))


# ---------------------------------------------------------------- refused

Asks = Callable[[Any], bool]


def _is_set(value: Any) -> bool:
    return True  # None is asked for before


def _is_count(value: Any) -> bool:
    return bool(value > 0)


def _is_share(value: Any) -> bool:
    return bool(0 < value < 1)


def _is_penalty(value: Any) -> bool:
    return bool(value != 1.0)


BEAMS = "the engine has no beam search of its own, a search has (search=beam_search)"
ASSISTED = "it changes what is written for speed, and the engine has no such assistant"
FILTER = "it leaves tokens out of a sample in a way that no search's sampling has"

REFUSED: Mapping[str, tuple[Asks, str]] = {
    "guidance_scale": (_is_penalty, "guidance needs a second, unconditional run for each text"),
    "num_beams": (lambda beams: beams > 1, BEAMS),
    "num_beam_groups": (lambda groups: groups > 1, BEAMS),
    "constraints": (_is_set, BEAMS),
    "force_words_ids": (_is_set, BEAMS),
    "penalty_alpha": (_is_count, "the engine has no contrastive search"),
    "dola_layers": (_is_set, "the engine does not contrast layers"),
    "watermarking_config": (_is_set, "the engine writes no watermark"),
    "token_healing": (bool, "it changes the prompt's tokens; a search's prompt stays as it is"),
    "stop_strings": (
        bool,
        "strings that end a text are a task's: give them as dataset.end, in Python as `end`",
    ),
    "max_time": (
        _is_set,
        "what is written would depend on the machine; run.max_wall_s is a budget",
    ),
    "typical_p": (lambda p: p < 1, FILTER),
    "top_h": (_is_set, FILTER),
    "epsilon_cutoff": (_is_share, FILTER),
    "eta_cutoff": (_is_share, FILTER),
    "is_assistant": (bool, "the model would stop where it is not sure"),
    "assistant_ensemble_weight": (_is_set, ASSISTED),
    "cache_implementation": (
        lambda kind: kind == "quantized",
        "the engine keeps keys and values as they are",
    ),
}
"""Settings that change what `generate` writes: when they do, and why the engine has them not."""


# ---------------------------------------------------------------- honoured

Make = Callable[[Any, Any], Processor | None]
"""From a setting's value and the whole `GenerationConfig` to what it does; None for nothing."""


def _always(processor: Any) -> Processor:
    return ByLength(lambda *_: processor)


def _repetition(value: Any, of_prompt: bool = False) -> Processor:
    penalty = hf.RepetitionPenaltyLogitsProcessor(value).penalty
    return Repetition(1 / penalty if of_prompt else penalty, of_prompt)


def _no_repeat(value: Any, of_prompt: bool = False) -> Processor:
    return NoRepeatNGram(hf.NoRepeatNGramLogitsProcessor(value).ngram_size, of_prompt)


def _bad_words(value: Any, config: Any) -> Processor:
    return _always(hf.NoBadWordsLogitsProcessor(value, _ends(config) or None))


def _least_length(value: Any, config: Any) -> Processor | None:
    ends = _ends(config)
    if config.min_new_tokens is not None or not ends:
        return None
    return ByLength(lambda _, device: hf.MinLengthLogitsProcessor(value, ends, str(device)))


def _least_new_tokens(value: Any, config: Any) -> Processor | None:
    ends = _ends(config)
    if not ends:
        return None
    kind = hf.MinNewTokensLengthLogitsProcessor
    return ByLength(lambda prompt, device: kind(prompt, value, ends, str(device)))


def _forced_eos(value: Any, config: Any) -> Processor:
    longest = config.max_new_tokens or config.max_length
    if longest is None:
        raise ValueError(
            "it ends a text at generate's longest, and this file sets neither max_new_tokens nor "
            "max_length; searches grow texts step by step"
        )
    new_tokens = config.max_new_tokens is not None
    kind = hf.ForcedEOSTokenLogitsProcessor
    return ByLength(lambda prompt, _: kind(longest + prompt * new_tokens, value))


def _decay(value: Any, config: Any) -> Processor:
    if not (ends := _ends(config)):
        raise ValueError("it makes the end token likelier, and eos_token_id names none")
    start, factor = value
    rule = int(start), float(factor)
    return ByLength(lambda prompt, _: hf.ExponentialDecayLengthPenalty(rule, ends, prompt))


def _begin_suppress(value: Any, config: Any) -> Processor:
    after_forced = config.forced_bos_token_id is not None
    kind = hf.SuppressTokensAtBeginLogitsProcessor
    return ByLength(lambda prompt, _: kind(value, prompt + (after_forced and prompt <= 1)))


def _ends(config: Any) -> list[int]:
    return sorted(end_tokens(config))


HONOURED: Mapping[str, tuple[Asks, Make]] = {
    "sequence_bias": (_is_set, lambda value, _: _always(hf.SequenceBiasLogitsProcessor(value))),
    "encoder_repetition_penalty": (_is_penalty, lambda value, _: _repetition(value, True)),
    "repetition_penalty": (_is_penalty, lambda value, _: _repetition(value)),
    "no_repeat_ngram_size": (_is_count, lambda value, _: _no_repeat(value)),
    "encoder_no_repeat_ngram_size": (_is_count, lambda value, _: _no_repeat(value, True)),
    "bad_words_ids": (_is_set, _bad_words),
    "min_length": (_is_count, _least_length),
    "min_new_tokens": (_is_count, _least_new_tokens),
    "forced_bos_token_id": (
        _is_set,
        lambda value, _: _always(hf.ForcedBOSTokenLogitsProcessor(int(value))),
    ),
    "forced_eos_token_id": (_is_set, _forced_eos),
    "remove_invalid_values": (
        lambda value: value is True,
        lambda *_: _always(hf.InfNanRemoveLogitsProcessor()),
    ),
    "exponential_decay_length_penalty": (_is_set, _decay),
    "suppress_tokens": (_is_set, lambda value, _: _always(hf.SuppressTokensLogitsProcessor(value))),
    "begin_suppress_tokens": (_is_set, _begin_suppress),
}
"""When a setting asks for something, and what it does, in the order of transformers'
`GenerationMixin._get_logits_processor`. `renormalize_logits` comes last there and changes no
choice."""


def _check_tokens(honoured: Mapping[str, Any], vocab_size: int) -> None:
    biased = [
        part[0] if isinstance(part, list) else part for part in honoured.get("sequence_bias", ())
    ]
    tokens = {"sequence_bias": biased, "bad_words_ids": honoured.get("bad_words_ids", ())}
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        value = honoured.get(name, ())
        tokens[name] = [[value] if isinstance(value, int) else value]
    for name, groups in tokens.items():
        for token in (token for group in groups for token in group):
            if not 0 <= token < vocab_size:
                raise UnsupportedModel(
                    f"the model's generation_config names token {token} in {name}, beyond the "
                    f"vocabulary of {vocab_size}. {WAY_OUT}"
                )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
