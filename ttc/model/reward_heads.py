"""A decoder with another head in place of its vocabulary: reward models, classifiers of sequences and of tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ttc.errors import UnsupportedModel

HEADS = ("score", "v_head", "classifier")
"""What published models call their heads."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class HeadedModel(nn.Module):
    """A decoder's body (its layers and final norm) and a head on its last hidden states.

    It is called as a causal language model is, and what the head gives takes the place of the logits. So the engine
    runs it like any other model. body: what `AutoModel` loads. head: any module from states to outputs.
    """

    def __init__(self, body: Any, head: nn.Module):
        super().__init__()
        self.body, self.head = body, head

    @classmethod
    def of(cls, model: Any) -> HeadedModel:
        """The parts of a loaded classifier. Raises UnsupportedModel for a model without a head of its own."""
        if isinstance(model, HeadedModel):
            return model
        for name in HEADS:
            if isinstance(head := getattr(model, name, None), nn.Module):
                return cls(model.base_model, head)
        raise UnsupportedModel(
            f"{type(model).__name__} has no reward head ({', '.join(HEADS)}); give a reward model, or a verifier that "
            "asks a language model (LLMJudge)"
        )

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, logits_to_keep: Tensor | int = 0, **options: Any
    ) -> SimpleNamespace:
        """`logits` (batch, rows, width) of the rows `logits_to_keep`, or of all (0)."""
        states = self.body(input_ids=input_ids, position_ids=position_ids, **options).last_hidden_state
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
    """The head among the weights of a folder or of a model on the hub: one linear layer, or two with a ReLU between.

    Raises UnsupportedModel where there is none, or one of another kind.
    """
    tensors = _head_tensors(source)
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        place, _, part = name.rpartition(".")
        layers.setdefault(place, {})[part] = tensor
    if not layers:
        raise UnsupportedModel(
            f"the weights of {source} hold no reward head (tensors named {', '.join(f'{name}.*' for name in HEADS)}); "
            "give a reward model, or a verifier that asks a language model (LLMJudge)"
        )
    if len(layers) > 2 or any(not {"weight"} <= set(layer) <= {"weight", "bias"} for layer in layers.values()):
        raise UnsupportedModel(f"the head in the weights of {source} is not known: {', '.join(sorted(tensors))}")
    linears = [_linear(layer, dtype) for layer in layers.values()]
    return linears[0] if len(linears) == 1 else nn.Sequential(linears[0], nn.ReLU(), linears[1])


def _linear(layer: dict[str, Tensor], dtype: torch.dtype) -> nn.Linear:
    weight, bias = layer["weight"], layer.get("bias")
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear


def _head_tensors(source: str) -> dict[str, Tensor]:
    from transformers.utils import cached_file

    def find(name: str) -> Path | None:
        found = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
        return None if found is None else Path(found)

    for name in WEIGHTS:
        if (index := find(f"{name}.index.json")) is not None:
            places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = {place for tensor, place in places.items() if _is_head(tensor)}
        else:
            files = {name}
        found = {k: v for file in sorted(files) if (path := find(file)) for k, v in _read(path).items()}
        if found:
            return found
    return {}


def _read(path: Path) -> dict[str, Tensor]:
    """The head's tensors in one file."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in _heads(file.keys())}
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return {name: tensors[name] for name in _heads(tensors)}


def _heads(names: Iterable[str]) -> list[str]:
    return [name for name in names if _is_head(name)]


def _is_head(name: str) -> bool:
    return name.startswith(tuple(f"{head}." for head in HEADS))
