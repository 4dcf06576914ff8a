"""Is a model a decoder of Llama's kind? Decided by the code of its modules, not by their names.

Llama, Mistral, Qwen 2 and Qwen 3 are written from the same few functions in transformers. A model
whose modules run the very code of one of these is of that kind, whatever it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import nn

from ttc.errors import UnsupportedModel
from ttc.model.packed_linear import is_plain
from ttc.model.stored import Stored, StoredMatrix

Linear = nn.Linear | StoredMatrix

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Whose code is known: what the names of their classes begin with."""


@dataclass(frozen=True)
class DecoderLayer:
    """A layer's modules. q_norm, k_norm: norms of each head, None without."""

    input_norm: Any
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    q_norm: Any
    k_norm: Any
    head_dim: int
    scale: float
    mlp_norm: Any
    gate: Linear
    up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.q, self.k, self.v, self.o, self.gate, self.up, self.down

    @property
    def norms(self) -> tuple[Any, ...]:
        norms = (self.input_norm, self.q_norm, self.k_norm, self.mlp_norm)
        return tuple(norm for norm in norms if norm is not None)


@dataclass(frozen=True)
class Decoder:
    """The parts of a model of Llama's kind. norm, head: None of a model's first layers alone."""

    embedding: nn.Embedding | Stored
    rotary: nn.Module
    layers: tuple[DecoderLayer, ...]
    norm: Any
    head: Linear | None

    def first(self, layers: int) -> Decoder:
        return replace(self, layers=self.layers[:layers], norm=None, head=None)

    @property
    def weights(self) -> Iterator[torch.Tensor]:
        """Those that are numbers; stored ones are bytes."""
        modules = [part for part in (self.embedding, self.norm, self.head) if part is not None]
        for layer in self.layers:
            modules += [*layer.linears, *layer.norms]
        for module in modules:
            for weight in module.parameters(recurse=False):
                if weight.is_floating_point():
                    yield weight


def decoder_of(model: Any) -> Decoder:
    """The parts of `model`. Raises UnsupportedModel for the first part that is not as Llama's."""
    inner = _expect(model, "ForCausalLM").model
    _expect(inner, "Model")
    return Decoder(
        embedding=_exactly(inner.embed_tokens, nn.Embedding),
        rotary=inner.rotary_emb,
        layers=tuple(map(_layer, inner.layers)),
        norm=_expect(inner.norm, "RMSNorm"),
        head=_exactly(model.lm_head, nn.Linear),
    )


def _layer(layer: Any) -> DecoderLayer:
    from transformers.activations import SiLUActivation

    _expect(layer, "DecoderLayer")
    attention = _expect(layer.self_attn, "Attention")
    mlp = _expect(layer.mlp, "MLP")
    _exactly(mlp.act_fn, SiLUActivation, nn.SiLU)
    scope = inspect.unwrap(type(attention).forward).__globals__
    for name in ("apply_rotary_pos_emb", "rotate_half"):
        if code_of(scope.get(name)) != code_of(getattr(_file_of("Llama"), name)):
            raise UnsupportedModel(f"{name} of {type(attention).__name__} is not Llama's")
    linears = {name: getattr(attention, f"{name}_proj") for name in "qkvo"}
    linears |= {name: getattr(mlp, f"{name}_proj") for name in ("gate", "up", "down")}
    head_norms: dict[str, Any] = {
        name: getattr(attention, name, None) for name in ("q_norm", "k_norm")
    }
    parts = DecoderLayer(
        input_norm=layer.input_layernorm,
        mlp_norm=layer.post_attention_layernorm,
        head_dim=attention.head_dim,
        scale=attention.scaling,
        **{name: _exactly(linear, nn.Linear) for name, linear in linears.items()},
        **head_norms,
    )
    for norm in parts.norms:
        _expect(norm, "RMSNorm")
    return parts


def _file_of(family: str) -> ModuleType:
    """The file of transformers with a family's classes; it takes seconds to import."""
    name = family.lower()
    return import_module(f"transformers.models.{name}.modeling_{name}")


def _expect(module: Any, part: str) -> Any:
    forwards = [code_of(getattr(_file_of(name), name + part).forward) for name in FAMILIES]
    if "forward" in vars(module) or code_of(type(module).forward) not in forwards:
        name = type(module).__name__
        raise UnsupportedModel(f"{name} is not the {part} of Llama, Mistral, Qwen 2 or Qwen 3")
    return module


def _exactly(module: Any, *kinds: type) -> Any:
    name = type(module).__name__
    kind = module.stands_for if isinstance(module, Stored) else type(module)
    if kind not in kinds:
        raise UnsupportedModel(f"a {name} stands where a plain {kinds[0].__name__} is expected")
    if not is_plain(module):
        raise UnsupportedModel(f"a {name} has quantized weights or a forward of its own")
    return module


def code_of(function: Any) -> Any:
    """What a function does, for comparison, without documentation."""
    return None if function is None else _content(inspect.unwrap(function).__code__)


def _content(code: CodeType) -> tuple[Any, ...]:
    constants = code.co_consts
    if constants and isinstance(constants[0], str):
        constants = constants[1:]
    inner = tuple(_content(c) if isinstance(c, CodeType) else c for c in constants)
    return code.co_code, code.co_names, code.co_varnames, inner
