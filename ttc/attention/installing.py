"""Setting a model's attention to the engine's, and back to what it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from ttc.attention.hf_hook import IMPLEMENTATION

Choice = list[tuple[Any, str | None]]
"""What a model's attention was set to: each configuration in it, with the name of its attention
implementation."""

_BEFORE: WeakKeyDictionary[torch.nn.Module, Choice] = WeakKeyDictionary()
"""What the models that run over the engine's attention were set to before."""


def can_set_attention(model: Any) -> bool:
    parts = (part for part in model.modules() if isinstance(part, PreTrainedModel))
    return any(part._can_set_attn_implementation() for part in parts)


def install(model: Any) -> None:
    """Set the model's attention to the engine's, and remember what it was."""
    if not is_installed(model) and can_set_attention(model):
        _BEFORE[model] = _choice(model)
        model.set_attn_implementation(IMPLEMENTATION)


def uninstall(model: Any) -> None:
    """Set the model's attention to what it was before `install`. A copy of such a model gets its
    eager attention."""
    if is_installed(model):
        if model in _BEFORE:
            _restore(_BEFORE.pop(model))
        else:
            model.set_attn_implementation("eager")


def is_installed(model: Any) -> bool:
    return bool(model.config.get_text_config()._attn_implementation == IMPLEMENTATION)


@contextmanager
def lent(model: Any) -> Iterator[None]:
    uninstall(model)
    try:
        yield
    finally:
        install(model)


@contextmanager
def attention_set_to(model: Any, implementation: str) -> Iterator[None]:
    """The model over another attention implementation, where it can be set, and as it was
    afterwards."""
    if not can_set_attention(model):
        yield
        return
    before = _choice(model)
    try:
        model.set_attn_implementation(implementation)
        yield
    finally:
        _restore(before)


def _choice(model: Any) -> Choice:
    configs = {id(model.config): model.config}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            configs[id(config)] = config
    waiting = list(configs.values())
    while waiting:  # parts that belong to no module, or to one that keeps no configuration
        config = waiting.pop()
        for name in getattr(config, "sub_configs", None) or {}:
            part = getattr(config, name, None)
            if part is not None and id(part) not in configs:
                configs[id(part)] = part
                waiting.append(part)
    return [(config, config._attn_implementation) for config in configs.values()]


def _restore(choice: Choice) -> None:
    for config, implementation in choice:
        # the property would change the parts as well
        config._attn_implementation_internal = implementation
