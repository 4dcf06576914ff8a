"""Loading a model and its tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ttc.checks import check_flag, check_is
from ttc.errors import InvalidInput, UnsupportedModel, refusing
from ttc.model.check.quantized import check_quantization
from ttc.model.compiled.compiled_check import compiled_decoder
from ttc.model.loading.default_model import SMOLLM2, smollm2_file
from ttc.model.loading.device_map import Over, weights_over
from ttc.model.loading.gguf_file import OTHER_FILES, GgufFile, gguf_file
from ttc.model.loading.gguf_settings import check_tensors, settle
from ttc.model.loading.gguf_tokenizer import restore
from ttc.model.loading.model_files import opened
from ttc.model.loading.multimodal import check_is_causal, text_decoder
from ttc.model.loading.partition import partition
from ttc.model.loading.reward_heads import HeadedModel, read_head
from ttc.model.packed_linear import has_bfloat16
from ttc.parts import handler
from ttc.text.chat import check_template
from ttc.time_limit import limited

PlaceWeights = Callable[[Any, torch.device], dict[str, Any]]
"""From an empty model and the device to where each module's weights go, by the module's name."""
COMPARED: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Has transformers say which weights are missing or of another shape."""
OTHER_CONFIG = "give the config.json that belongs to its weights"
BUILD_S = 20.0
"""Seconds to read a configuration, and to build its model without weights. A real one takes less
than one."""
PER_BYTE, PER_BYTE_QUANTIZED = 4, 32
"""The most parameters that a byte of a file can stand for: one of a byte is tied to others, and
quantized ones take a bit or two."""


def load(  # noqa: PLR0913 - what a model is read as, each by its name
    name: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    quantized: bool = False,
    compiled: bool = False,
    over: Over | None = None,
    place_weights: PlaceWeights | None = None,
) -> tuple[Any, Any]:
    """Return (model, tokenizer), ready for inference; of a multimodal model the text decoder.

    device: None or "auto" for CUDA where there is one, else the CPU. dtype: None or "auto" for
    bfloat16 where the device has units for it, else float32 (see `compiled`). gguf_file: which of
    a folder's or a hub model's .gguf files to read. trust_remote_code: run Python code that comes
    with the model.
    quantized: keep the weights of a .gguf file, or gpt-oss's experts in MXFP4, as they are stored,
    on a CPU; without a C++ compiler those of a .gguf file are unpacked as ever, with a warning.
    compiled: the model's layers run compiled on a CPU where they can. Then dtype "auto" is bfloat16
    for such a model on every CPU, as the compiled layers need no units for it.
    over: the devices that layers run on, beginning with `device` (see `device_map.py`).
    place_weights: asked for a map before any weight is read; with `quantized` it is asked once all
    are there, and moves nothing.

    Raises UnsupportedModel for what cannot be loaded here, InvalidInput for wrong arguments.
    """
    from transformers import AutoModelForCausalLM

    check_is("name", name, str | os.PathLike, "an alias, a hub id, a folder or a .gguf file")
    check_flag("trust_remote_code", trust_remote_code)
    place = chosen_device(device)
    precision = _dtype(dtype, place)
    stored, name = _stored(name, quantized, place, precision, over is not None)
    with opened(name, gguf_file, trust_remote_code) as (source, options):
        config = read_config(source, options)
        method = _unpacked_by(config, place, stored, options)
        if method is not None and (place_weights is not None or over is not None):
            raise UnsupportedModel(
                f"its weights are quantized by {method!r}; leave placement out, give one device"
            )
        decoder = None
        if not (trust_remote_code and hasattr(config, "auto_map")):
            decoder = text_decoder(config)
            if decoder is None and not hasattr(config, "auto_map"):
                check_is_causal(config)
        tokenizer = read_tokenizer(source, options)
        if stored is not None:
            if decoder is not None:
                raise UnsupportedModel(
                    "quantized=True reads models of text, and this one takes other inputs too"
                )
            model = stored.model(config, source, options).eval().requires_grad_(False)
            if place_weights is not None:
                place_weights(model, place)
            return model, tokenizer

        kind: Any
        kind, config, renaming = decoder or (AutoModelForCausalLM, config, {})
        build = partial(_without_weights, source, kind, config, trust_remote_code=trust_remote_code)
        choose = compiled and method is None and _auto_is_open(dtype, place)
        empty, precision = _empty(build, precision, choose)
        places: dict[str, Any] = {"": place}
        if place_weights is not None:
            places = place_weights(empty, place)
        elif over is not None:
            places = weights_over(empty, over)
        _check_size(empty, Path(source), options.get("gguf_file"))
        if "gguf_file" in options:
            check_tensors(empty, _head(source, options))
        options |= {"dtype": precision, "device_map": places} | renaming
        with nullcontext() if decoder is None else _without_report():
            model = _read_weights(kind, source, options | {"config": config})
        if place_weights is not None:
            _remove_hooks(model)
    return model.eval().requires_grad_(False), tokenizer


def _unpacked_by(
    config: Any, place: torch.device, stored: Any, options: Mapping[str, Any]
) -> str | None:
    """The method of quantized weights that transformers reads, None for plain ones. stored: see
    `_stored`; what it does not keep in a folder is refused here."""
    if stored is not None and "gguf_file" not in options:
        stored.check(config)
        return None
    return check_quantization(config, place)


def _stored(name: str | os.PathLike[str], quantized: bool, *how: Any) -> tuple[Any, str]:
    """What keeps weights as they are stored (`ttc.stored.reading`), None to have numbers of them,
    and where they are. how: device, dtype, and whether layers run on several devices."""
    check_flag("quantized", quantized)
    source = os.fspath(name)
    if not quantized:
        return None, source
    stored = handler("quantized", "True")(*how)
    return stored, str(smollm2_file()) if source == SMOLLM2 else source


def configuration(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    quantized: bool = False,
    **source: Any,
) -> tuple[Any, torch.dtype, Mapping[str, int]]:
    """Return (configuration, dtype, bytes) of what `load` would give with `compiled`, without
    reading weights.

    source: gguf_file, trust_remote_code. bytes: of each weight that stays as it is stored, by its
    name. Raises UnsupportedModel for quantized weights that do not, whose sizes a configuration
    does not tell.
    """
    place = chosen_device(device)
    precision = _dtype(dtype, place)
    stored, name = _stored(name, quantized, place, precision)
    with opened(name, **source) as (path, options):
        config = read_config(path, options)
        method = _unpacked_by(config, place, stored, options)
        if stored is not None:
            return config, precision, stored.sizes(config, path, options)
        if method is not None:
            raise UnsupportedModel(
                f"its weights are quantized by {method!r}, and memory=auto plans for plain ones, "
                "and on a CPU for those that stay as they are stored (quantized=True)"
            )
        if _auto_is_open(dtype, place) and partition(config, torch.bfloat16).compiled:
            precision = torch.bfloat16
        return config, precision, {}


def load_headed(
    name: str,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    head: Any = None,
) -> tuple[HeadedModel, Any]:
    """Return (model, tokenizer) of a reward model or a classifier, whatever class saved it.

    head: takes the place of the one among the weights. Raises UnsupportedModel for weights without
    a head, and for weights that do not fill the decoder.
    """
    from transformers import AutoModel

    place = chosen_device(device)
    precision = _dtype(dtype, place)
    with opened(name) as (source, options):
        tokenizer = read_tokenizer(source, options)
        empty = _without_weights(source, AutoModel, read_config(source, options), precision)
        _check_size(empty, Path(source))
        head = read_head(source, precision) if head is None else head.to(precision)
        body = _read_weights(AutoModel, source, options | {"dtype": precision})
    return HeadedModel(body, head).eval().requires_grad_(False).to(place), tokenizer


def load_tokenizer(name: str, **source: Any) -> Any:
    """The tokenizer that `load` gives for `name`. source: gguf_file, trust_remote_code."""
    with opened(name, **source) as (path, options):
        return read_tokenizer(path, options)


def load_generation_config(name: str, **source: Any) -> Any:
    """The `GenerationConfig` that `load` gives a model, without its weights; None without one.

    source: gguf_file, trust_remote_code.
    Raises InvalidInput where the hub cannot be asked for it.
    """
    from transformers import GenerationConfig
    from transformers.utils import cached_file

    with opened(name, **source) as (path, options):
        if "gguf_file" in options:
            return None
        for file, by_model in (("generation_config.json", False), ("config.json", True)):
            with refusing(
                OSError,
                f"what the generation_config of {name!r} asks for cannot be read ({{error}}); "
                "make it reachable, or leave its settings out with generation_settings=False "
                "(model.generation_settings=false)",
            ):
                there = cached_file(path, file, _raise_exceptions_for_missing_entries=False)
            if there is not None:
                return GenerationConfig.from_pretrained(path, file, _from_model_config=by_model)
    return None


def read_config(source: str, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    def read() -> Any:
        return AutoConfig.from_pretrained(source, **options)

    if not Path(source).exists():  # it comes over a network
        config = read()
    else:
        config = limited(read, BUILD_S, f"reading the configuration of {source}", OTHER_CONFIG)
    if "gguf_file" in options:
        settle(config, _head(source, options))
    return config


def _head(source: str, options: Mapping[str, Any]) -> GgufFile:
    from transformers.utils import cached_file

    return gguf_file(Path(str(cached_file(source, options["gguf_file"]))))


def read_tokenizer(source: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if "gguf_file" in options:
        restore(tokenizer, _head(source, options))
    tokenizer("a")  # settings of wrong types show here
    check_template(getattr(tokenizer, "chat_template", None))
    return tokenizer


def _read_weights(kind: Any, source: str, options: dict[str, Any]) -> Any:
    """Raises UnsupportedModel for missing weights, which transformers would make up, and for those
    of another shape."""
    model, info = kind.from_pretrained(source, **options, **COMPARED)
    if "gguf_file" in options and (left := info["unexpected_keys"]):
        raise UnsupportedModel(
            f"the file has {len(left)} tensors that the model has no place for, among them "
            f"{min(left)}; {OTHER_FILES}"
        )
    if missing := info["missing_keys"]:
        raise UnsupportedModel(
            f"its files lack {len(missing)} weights of a {type(model).__name__}, among them "
            f"{min(missing)}"
        )
    if mismatched := info["mismatched_keys"]:
        name, stored, stated = min(mismatched)
        raise UnsupportedModel(
            f"its configuration does not fit {len(mismatched)} of its weights, among them {name}: "
            f"it is {tuple(stored)} in the file and {tuple(stated)} by the configuration; give "
            "the config.json that belongs to these weights"
        )
    return model


def _without_weights(
    source: str, kind: Any, config: Any, dtype: torch.dtype, trust_remote_code: bool = False
) -> Any:
    """The model that a configuration describes. Raises InvalidInput where that takes too long."""
    config = deepcopy(config)

    def build() -> Any:
        with torch.device("meta"):
            if hasattr(kind, "from_config"):  # transformers' choice by the configuration
                return kind.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
            return kind._from_config(config, dtype=dtype)

    return limited(build, BUILD_S, f"building the model that {source} describes", OTHER_CONFIG)


def _check_size(model: Any, source: Path, gguf_file: str | None = None) -> None:
    """Raise ValueError for many more parameters than the files can hold, before memory is taken."""
    if not source.exists():  # an id on the hub
        return
    files = [*source.glob("*.safetensors"), *source.glob("*.bin")]
    if gguf_file:
        files = [source / gguf_file]
    stored_bytes = sum(file.stat().st_size for file in files)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    quantized = gguf_file is not None or hasattr(model.config, "quantization_config")
    per_byte = PER_BYTE_QUANTIZED if quantized else PER_BYTE
    if parameters > per_byte * stored_bytes:
        raise ValueError(
            f"its configuration has {parameters:,} parameters, and its files hold "
            f"{stored_bytes:,} bytes"
        )


def _remove_hooks(model: Any) -> None:
    from accelerate.hooks import remove_hook_from_submodules

    remove_hook_from_submodules(model)
    model.tie_weights()
    vars(model).pop("hf_device_map", None)


@contextmanager
def _without_report() -> Iterator[None]:
    """Leave out transformers' report of unused weights: a text decoder leaves some by intent."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def chosen_device(device: str | torch.device | None) -> torch.device:
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_is("device", device, str | int | torch.device, "its name, as 'cuda:0'")
    with refusing(
        RuntimeError, f"device={device!r} is not a device; use auto, cpu, cuda or cuda:N"
    ):
        place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(
            f"device={device!r} was asked for, but no CUDA device is available; use cpu"
        )
    return place


def _auto_is_open(dtype: str | torch.dtype | None, device: torch.device) -> bool:
    """Whether it depends on the model which type "auto" is: its modules are faster in float32 on
    such a CPU, and compiled layers in bfloat16."""
    return dtype in (None, "auto") and device.type == "cpu" and not has_bfloat16()


def _empty(
    build: Callable[[torch.dtype], Any], dtype: torch.dtype, choose: bool
) -> tuple[Any, torch.dtype]:
    """A model without weights, and its type: bfloat16 with `choose` if its layers run compiled."""
    if choose:
        empty = build(torch.bfloat16)
        if compiled_decoder(empty) is not None:
            return empty, torch.bfloat16
    return build(dtype), dtype


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None or dtype == "auto":
        fast = has_bfloat16()
        if device.type == "cuda":  # from compute capability 8 on; earlier ones emulate it
            fast = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if fast else torch.float32
    check_is("dtype", dtype, str, "its name, as 'float32'")
    precision = getattr(torch, dtype, None)
    if not (isinstance(precision, torch.dtype) and precision.is_floating_point):
        raise InvalidInput(
            f"dtype={dtype!r} is not a floating-point type; use auto, float32, bfloat16 or float16"
        )
    return precision
