"""Adapters of peft whose effect depends on more than a token and those before it, refused by name.

Most adapters change a layer's weights: the check at load runs the model with them, and the engine
serves it. What these here do depends on which tokens a sequence holds or on all rows of a call, or
adds tokens that the tree knows nothing of. The check at load runs one short text, so it need not
show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ttc.errors import UnsupportedModel

WAY_OUT = "take it off (model.delete_adapter), or use adapters that change weights, as plain LoRA"
KINDS = {
    "LILY": "it mixes its experts by a mean over all rows of a pass",
    "POLY": "it needs the number of a task with each call, and the engine gives none",
    "SHADOW": "it runs a second stack of layers, whose keys and values the engine does not keep",
    "XLORA": "it weighs its adapters by a first pass over the whole text",
}
"""Kinds of adapters, as peft names them (`peft_type`), and why each cannot be served."""


def check_adapters(model: nn.Module) -> None:
    """Raise UnsupportedModel for a model with an adapter, active or not, whose effect depends on
    which tokens there are, on the rows beside, or on the call (after the code of peft 0.21)."""
    for name, config in _configurations(model):
        if reason := _why_not(config):
            kind = type(model).__name__
            raise UnsupportedModel(f"{kind} has the adapter {name!r}, and {reason}; {WAY_OUT}")


def _configurations(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Each adapter's name and configuration, wherever peft or transformers keeps it."""
    for module in model.modules():
        configurations = getattr(module, "peft_config", None)
        if isinstance(configurations, dict):
            yield from configurations.items()


def _why_not(config: Any) -> str:
    """Why an adapter of this configuration cannot be served, "" if nothing is known against it."""
    if getattr(config, "alora_invocation_tokens", None) is not None:
        return (
            "it is an activated LoRA (aLoRA): it acts only from the tokens alora_invocation_tokens "
            "on, which peft looks for in the whole text of a call, and a pass of the engine holds "
            "parts of many texts"
        )
    if getattr(config, "is_prompt_learning", False):
        return (
            f"it learns a prompt ({_kind(config)}): it puts tokens or keys and values of its own "
            "before each text, which the tree of branches knows nothing of"
        )
    return KINDS.get(_kind(config), "")


def _kind(config: Any) -> str:
    kind = getattr(config, "peft_type", "")
    return str(getattr(kind, "value", kind))
