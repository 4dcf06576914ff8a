"""From a model's configuration to its partition units, without its weights (HELM, section 4.1.1).

The paper traces the model and counts. Here the model is built without memory, on PyTorch's "meta" device, its weights
are counted, and one pass shows what each layer's attention is given and which states its recurrent layers keep. So no
list of architectures is needed.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.cache_utils import Cache, DynamicCache, LinearAttentionCacheLayerMixin

from ttc.cost_model.unit import Unit
from ttc.decoder_layers import decoder_layers, large_linears
from ttc.errors import UnsupportedModel

SHAPES = "ttc_shapes"
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
ROUTED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k")
"""What configurations call the number of experts, and how many of them a row goes through."""

CACHE_NAMES = ("cache_params", "past_key_values")
"""What transformers' models call their cache."""

Kept = dict[str, Any]
"""What a unit says of its attention and states: kv_elements, score_elements, window, state_bytes."""

_SEEN: ContextVar[dict[int, Kept]] = ContextVar("seen")
"""Where attention notes what it is given, by layer; not every model passes keyword arguments on to its attention."""


def partition_units(config: Any, dtype: torch.dtype = torch.bfloat16, kind: Any = None) -> tuple[Unit, ...]:
    """{u_i} of Algorithm 1: the embedding, each transformer block in order, and the output projection.

    config: of transformers. dtype: of weights, activations and KV. kind: the model's class, None for the one that
    `AutoModelForCausalLM` has for the configuration.
    Raises UnsupportedModel for what is not a decoder, each layer of which has one attention or keeps a recurrent state.
    """
    config = copy.deepcopy(config)
    config.get_text_config()._experts_implementation = "batched_mm"  # the one that needs no values to choose experts
    try:
        with torch.device("meta"):
            from_config = AutoModelForCausalLM.from_config if kind is None else kind._from_config
            model = from_config(config, dtype=dtype)
        kept = _kept(model)
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"the layers of a {type(config).__name__} cannot be counted ({type(error).__name__}: {error}). Give the "
            "configuration of a decoder-only language model; placement=streamed needs no counts"
        ) from error
    return _units(model, kept, dtype)


def _units(model: Any, kept: list[Kept], dtype: torch.dtype) -> tuple[Unit, ...]:
    config = model.config.get_text_config()
    common: dict[str, Any] = {"hidden": config.hidden_size, "bytes_per_element": dtype.itemsize}
    blocks = decoder_layers(model)
    head = {id(weight) for weight in model.get_output_embeddings().parameters()}
    in_blocks = {id(weight) for block in blocks for weight in block.parameters()}
    tables, others, tied = dict[int, Tensor](), dict[int, Tensor](), dict[int, Tensor]()
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            if id(weight) not in in_blocks:
                table = isinstance(module, nn.Embedding)
                where = (tied if id(weight) in head else tables) if table else others
                where[id(weight)] = weight
    multiplied = sum(weight.numel() for weight in others.values() if weight.dim() > 1)
    return (
        Unit(
            name="embedding",
            param_bytes=_bytes(tables.values()),
            multiplied=0,
            tied_bytes=_bytes(tied.values()),
            **common,
        ),
        *(
            Unit(name=f"block {n}", **_block(block, config), **its, **common)
            for n, (block, its) in enumerate(zip(blocks, kept, strict=True))
        ),
        Unit(name="output", param_bytes=_bytes(others.values()), multiplied=multiplied, **common),
    )


def _block(block: nn.Module, config: Any) -> dict[str, Any]:
    """param_bytes, large_bytes and multiplied of a transformer block, and what a unit says of experts."""
    weights = dict(block.named_parameters())
    matrices = {name: weight.numel() for name, weight in weights.items() if weight.dim() > 1}
    found: dict[str, Any] = {"param_bytes": _bytes(weights.values()), "multiplied": sum(matrices.values())}
    found["large_bytes"] = _bytes(linear.weight for linear in large_linears(block).values())
    of_experts = [name for name in weights if "experts" in name.split(".")]
    if of_experts:
        experts, routed = (
            next((n for n in (getattr(config, k, 0) for k in keys) if n), 1) for keys in (EXPERTS, ROUTED)
        )
        stored = sum(matrices.get(name, 0) for name in of_experts)
        found["multiplied"] -= stored - stored * routed // experts
        found |= {"experts": experts, "routed": routed, "expert_bytes": _bytes(weights[name] for name in of_experts)}
    return found


def _bytes(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)


def _kept(model: Any) -> list[Kept]:
    """What each layer's attention is given, and what it keeps of a sequence beside, from a pass of one token."""
    model.set_attn_implementation(SHAPES)
    try:
        return _seen(model)
    except RuntimeError:  # it looks at values, which there are none of
        values = copy.deepcopy(model)
        return _seen(values._apply(lambda tensor: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)))


def _seen(model: Any) -> list[Kept]:
    layers, cache = model.config.get_text_config().num_hidden_layers, _state_cache(model.config)
    seen = dict[int, Kept]()
    _SEEN.set(seen)
    ids = torch.ones(1, 1, dtype=torch.long, device=model.get_input_embeddings().weight.device)
    names = inspect.signature(model.forward).parameters
    name = next((name for name in CACHE_NAMES if name in names), CACHE_NAMES[1])
    model(input_ids=ids, use_cache=cache is not None, **({} if cache is None else {name: cache}))
    for layer, state_bytes in {} if cache is None else _state_bytes(cache):
        seen.setdefault(layer, {})["state_bytes"] = state_bytes
    if len(seen) < layers:
        raise UnsupportedModel(
            f"{len(seen)} of the {layers} layers of {type(model).__name__} call attention through transformers' "
            "AttentionInterface or keep a recurrent state in transformers' cache, and others cannot be counted without "
            "weights; placement=streamed needs no counts"
        )
    return [seen[n] for n in range(layers)]


class _StateCache(DynamicCache):
    """A cache that answers for recurrent layers alone."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


def _state_cache(config: Any) -> Cache | None:
    """An empty cache for a model with recurrent layers; None for others."""
    try:
        cache = _StateCache(config=config)
    except Exception:  # a configuration that transformers cannot make a cache for
        return None
    return cache if any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers) else None


def _state_bytes(cache: Any) -> Iterator[tuple[int, int]]:
    """(layer, bytes of one sequence's state) of the layers that have left one in a cache."""
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            states = (*layer.conv_states.values(), *layer.recurrent_states.values())
            if nbytes := _bytes(state for state in states if state is not None):
                yield number, nbytes


def _record(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Note the shapes of a layer's attention, which it may call more than once. Tensors are (1, heads, 1, dim)."""
    heads, kv_heads, widths = query.shape[1], key.shape[1], key.shape[3] + value.shape[3]
    its = _SEEN.get().setdefault(int(module.layer_idx), {"kv_elements": 0, "score_elements": 0})
    its["kv_elements"] += kv_heads * widths
    its["score_elements"] += heads * widths
    its["window"] = sliding_window
    return query.new_empty(1, 1, heads, value.shape[3]), None


AttentionInterface.register(SHAPES, _record)
