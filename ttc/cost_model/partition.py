"""From a model's configuration to its partition units, without its weights (HELM, section 4.1.1).

The paper traces the model and counts. Here the model is built without memory, on PyTorch's "meta" device, its weights
are counted, and one pass shows what each layer's attention is given. So no list of architectures is needed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM

from ttc.cost_model.unit import Unit
from ttc.decoder_layers import decoder_layers
from ttc.errors import UnsupportedModel

SHAPES = "ttc_shapes"
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
ROUTED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k")
"""What configurations call the number of experts, and how many of them a row goes through."""

Attention = dict[str, Any]
"""What a unit says of its attention: kv_elements, score_elements, window."""


def partition_units(config: Any, dtype: torch.dtype = torch.bfloat16) -> tuple[Unit, ...]:
    """{u_i} of Algorithm 1: the embedding, each transformer block in order, and the output projection.

    config: of transformers. dtype: of weights, activations and KV.
    Raises UnsupportedModel for what is not a decoder with one attention in each of its layers.
    """
    config = copy.deepcopy(config)
    text = config.get_text_config()
    text.pad_token_id = None  # else some models look at the tokens, which have no values here
    text._experts_implementation = "batched_mm"  # the one that needs no values to choose experts
    name = type(config).__name__
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        attentions = _attentions(model)
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"the layers of a {name} cannot be counted ({type(error).__name__}: {error}). Give the configuration of a "
            "decoder-only language model that the engine runs (docs/models.md)"
        ) from error
    return _units(model, attentions, dtype)


def _units(model: Any, attentions: list[Attention], dtype: torch.dtype) -> tuple[Unit, ...]:
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
            Unit(name=f"block {n}", **_block(block, config), **attention, **common)
            for n, (block, attention) in enumerate(zip(blocks, attentions, strict=True))
        ),
        Unit(name="output", param_bytes=_bytes(others.values()), multiplied=multiplied, **common),
    )


def _block(block: nn.Module, config: Any) -> dict[str, Any]:
    """param_bytes and multiplied of a transformer block, and what a unit says of experts."""
    weights = dict(block.named_parameters())
    matrices = {name: weight.numel() for name, weight in weights.items() if weight.dim() > 1}
    found: dict[str, Any] = {"param_bytes": _bytes(weights.values()), "multiplied": sum(matrices.values())}
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


class _AllSeen(Exception):
    """Every layer has called attention."""


def _attentions(model: Any) -> list[Attention]:
    """What each layer's attention is given, from one pass of one token."""
    layers = model.config.get_text_config().num_hidden_layers
    seen: dict[int, Attention] = {}
    model.set_attn_implementation(SHAPES)
    ids = torch.zeros(1, 1, dtype=torch.long, device="meta")
    try:
        model(input_ids=ids, use_cache=False, ttc_seen=(seen, layers))
    except _AllSeen:
        return [seen[n] for n in range(layers)]
    raise UnsupportedModel(
        f"{len(seen)} of the {layers} layers of {type(model).__name__} call attention through transformers' "
        "AttentionInterface; the engine runs models whose layers all do (docs/models.md)"
    )


def _record(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    ttc_seen: tuple[dict[int, Attention], int],
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Note the shapes of a layer's attention; the last layer ends the pass. Tensors are (1, heads, 1, dim)."""
    seen, layers = ttc_seen
    heads, kv_heads, widths = query.shape[1], key.shape[1], key.shape[3] + value.shape[3]
    seen[int(module.layer_idx)] = {
        "kv_elements": kv_heads * widths,
        "score_elements": heads * widths,
        "window": sliding_window,
    }
    if len(seen) == layers:
        raise _AllSeen
    return query.new_empty(1, 1, heads, value.shape[3]), None


AttentionInterface.register(SHAPES, _record)
