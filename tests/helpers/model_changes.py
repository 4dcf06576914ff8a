"""Changes of a small Llama that change what it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def a_weight_in_place(model: Any) -> None:
    with torch.no_grad():
        model.lm_head.weight.mul_(2)


def a_row_of_a_weight(model: Any) -> None:
    with torch.no_grad():
        model.model.embed_tokens.weight[3] = 0


def a_weight_in_inference_mode(model: Any) -> None:
    with torch.inference_mode():
        model.model.norm.weight.add_(1)


def a_weight_through_data(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.weight.data.mul_(2)


def a_weights_data(model: Any) -> None:
    weight = model.lm_head.weight
    weight.data = weight.data.clone()


def another_weight(model: Any) -> None:
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach())


def a_bias_where_none_was(model: Any) -> None:
    model.lm_head.bias = nn.Parameter(torch.ones(model.lm_head.out_features))


def a_buffer(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(2)


def a_state_dict(model: Any) -> None:
    model.load_state_dict({name: 2 * weight for name, weight in model.state_dict().items()})


def a_hook(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: 2 * out)


def a_module(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = nn.ReLU()


def a_class(model: Any) -> None:
    kind = type(model.model.norm)
    model.model.norm.__class__ = type("Other", (kind,), {})


def a_forward(model: Any) -> None:
    model.model.norm.forward = lambda x: x


def a_scale(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 2


CHANGES = [
    a_weight_in_place,
    a_row_of_a_weight,
    a_weight_in_inference_mode,
    a_weight_through_data,
    a_weights_data,
    another_weight,
    a_bias_where_none_was,
    a_buffer,
    a_state_dict,
    a_hook,
    a_module,
    a_class,
    a_forward,
    a_scale,
]
