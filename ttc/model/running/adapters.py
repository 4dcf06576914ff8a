"""Adapters of peft whose effect depends on more than a token and those before it, refused by name.

Most adapters change a layer's weights, and the check at load runs the model with them. These depend
on which tokens a sequence holds, on all rows of a call, or add tokens that the tree does not know.
"""

from __future__ import annotations

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
"""Kinds of adapters, as peft 0.21 names them (`peft_type`), and why each cannot be served."""


def check_adapters(model: nn.Module) -> None:
    for module in model.modules():
        adapters = getattr(module, "peft_config", None)
        for name, config in adapters.items() if isinstance(adapters, dict) else ():
            if reason := _why_not(config):
                kind = type(model).__name__
                raise UnsupportedModel(f"{kind} has the adapter {name!r}, and {reason}; {WAY_OUT}")


def _why_not(config: Any) -> str:
    kind = getattr(config, "peft_type", "")
    kind = str(getattr(kind, "value", kind))
    if getattr(config, "alora_invocation_tokens", None) is not None:
        return (
            "it is an activated LoRA (aLoRA): it acts only from the tokens alora_invocation_tokens "
            "on, which peft looks for in the whole text of a call, and a pass of the engine holds "
            "parts of many texts"
        )
    if getattr(config, "is_prompt_learning", False):
        return (
            f"it learns a prompt ({kind}): it puts tokens or keys and values of its own before "
            "each text, which the tree of branches knows nothing of"
        )
    return KINDS.get(kind, "")
