"""A decoder with another head in place of its vocabulary: reward models, classifiers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ttc.errors import UnsupportedModel

HEADS = ("score", "v_head", "classifier")
"""What published models call their heads."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
NO_LANGUAGE_MODEL = "give a language model, or a verifier that reads heads"
WAY_OUT = "give a reward model, or a verifier that asks a language model (LLMJudge)"


class HeadedModel(nn.Module):
    """A decoder's body (its layers and final norm) and a head on its last hidden states.

    It is called as a causal language model is, with what the head gives as logits. body: what
    `AutoModel` loads. head: any module from states to outputs.
    """

    def __init__(self, body: Any, head: nn.Module):
        super().__init__()
        self.body = body
        self.head = head

    @classmethod
    def of(cls, model: Any) -> HeadedModel:
        """The parts of a loaded classifier. Raises UnsupportedModel for a model without a head."""
        if isinstance(model, HeadedModel):
            return model
        for name in HEADS:
            if isinstance(head := getattr(model, name, None), nn.Module):
                return cls(model.base_model, head)
        raise UnsupportedModel(
            f"{type(model).__name__} has no reward head ({', '.join(HEADS)}); {WAY_OUT}"
        )

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        logits_to_keep: Tensor | int = 0,
        **options: Any,
    ) -> SimpleNamespace:
        """`logits` (batch, rows, width) of the rows `logits_to_keep`, or of all (0)."""
        output = self.body(input_ids=input_ids, position_ids=position_ids, **options)
        states = output.last_hidden_state
        kept = states if isinstance(logits_to_keep, int) else states[:, logits_to_keep]
        return SimpleNamespace(logits=self.head(kept))

    @property
    def config(self) -> Any:
        return self.body.config

    @property
    def device(self) -> torch.device:
        device: torch.device = self.body.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.body.dtype
        return dtype

    @property
    def _supports_attention_backend(self) -> bool:
        return bool(getattr(self.body, "_supports_attention_backend", False))

    def set_attn_implementation(self, implementation: str) -> None:
        self.body.set_attn_implementation(implementation)


def read_head(source: str, dtype: torch.dtype) -> nn.Module:
    """The head among a model's weights: one linear layer, or two with a ReLU between.

    source: a folder or a model on the hub. Raises UnsupportedModel for no head or another kind.
    """
    tensors = _head_tensors(source)
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        place, _, part = name.rpartition(".")
        layers.setdefault(place, {})[part] = tensor
    if not layers:
        names = ", ".join(f"{name}.*" for name in HEADS)
        raise UnsupportedModel(
            f"the weights of {source} hold no reward head (tensors named {names}); {WAY_OUT}"
        )
    linear = all({"weight"} <= set(layer) <= {"weight", "bias"} for layer in layers.values())
    if len(layers) > 2 or not linear:
        raise UnsupportedModel(
            f"the head in the weights of {source} is not known: {', '.join(sorted(tensors))}"
        )
    first, *others = (_linear(dtype, **layer) for layer in layers.values())
    return nn.Sequential(first, nn.ReLU(), *others) if others else first


def headless(model: Any) -> Any:
    """A loaded language model. Raises UnsupportedModel for one with a reward head in its place."""
    if isinstance(model, HeadedModel) or any(
        isinstance(getattr(model, name, None), nn.Module) for name in HEADS
    ):
        raise UnsupportedModel(
            f"{type(model).__name__} has a reward head and is read as a language model here; "
            f"{NO_LANGUAGE_MODEL}"
        )
    return model


def check_headless(source: str) -> None:
    """Raise UnsupportedModel for weights with a reward head, where a language model is read: one
    with tied embeddings would be made up from what they hold."""
    if tensors := _head_tensors(source):
        raise UnsupportedModel(
            f"the weights of {source} hold a reward head ({min(tensors)}) and are read as a "
            f"language model's here; {NO_LANGUAGE_MODEL}"
        )


def _linear(dtype: torch.dtype, weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear


def _head_tensors(source: str) -> dict[str, Tensor]:
    for name in WEIGHTS:
        files = [name]
        if (index := _file(source, f"{name}.index.json")) is not None:
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = sorted({place for tensor, place in places.items() if _is_head(tensor)})
        paths = [path for file in files if (path := _file(source, file)) is not None]
        tensors = {name: tensor for path in paths for name, tensor in _read(path).items()}
        if tensors:
            return tensors
    return {}


def _file(source: str, name: str) -> Path | None:
    from transformers.utils import cached_file

    path = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    return None if path is None else Path(path)


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names if _is_head(name)}
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return {name: tensor for name, tensor in tensors.items() if _is_head(name)}


def _is_head(name: str) -> bool:
    return name.partition(".")[0] in HEADS
