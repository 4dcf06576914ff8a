"""What takes the place of a module's `forward` in families that compute attention there, by code of
their own.

Each does what the module does, up to its queries, keys and values and from its output on, and calls
an attention function between. The check at load compares the model's logits with those of its own
code.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ttc.attention.position_bias import COLUMNS, Bias, with_bias
from ttc.errors import UnsupportedModel

Output = tuple[Tensor, None]


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    bias: Bias | None = None,
) -> Tensor:
    """The output (batch, tokens, heads x value_dim) of the attention function that the module is to
    call."""
    if bias is not None:
        query, key, value = with_bias(query, key, value, scaling, bias)
        scaling = 1.0
    function = ALL_ATTENTION_FUNCTIONS[module.ttc_attention]
    out: Tensor = function(module, query, key, value, mask, scaling=scaling)[0]
    return (out if bias is None else out[..., :-COLUMNS]).flatten(2)


def _of_its_file(module: Any, name: str) -> Any:
    return getattr(import_module(module.original.__module__), name)


def _alibi(module: Any, like: Tensor) -> Bias:
    def bias(positions: int) -> Tensor:
        mask = torch.ones(1, positions, dtype=torch.long, device=like.device)
        bias: Tensor = _of_its_file(module, "build_alibi_tensor")(
            mask, module.num_heads, like.dtype
        )
        return bias[:, 0]

    return bias


def _bloom(
    self: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Tensor | None,
    **_: Any,
) -> Output:
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    bias = _alibi(self, hidden_states)
    out = _attend(self, query, key, value, attention_mask, self.inv_norm_factor, bias)
    return residual + self.dense(out), None


def _falcon(
    self: Any,
    hidden_states: Tensor,
    alibi: Tensor | None,
    attention_mask: Tensor | None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> Output:
    heads = self._split_heads(self.query_key_value(hidden_states))
    query, key, value = (x.transpose(1, 2) for x in heads)
    if self.new_decoder_architecture:  # keys and values were repeated for the heads that share them
        key, value = (x[:, :: self.num_heads // self.num_kv_heads] for x in (key, value))
    bias: Bias | None = None
    if alibi is None:
        assert position_embeddings is not None
        query, key = _of_its_file(self, "apply_rotary_pos_emb")(query, key, *position_embeddings)
    else:
        # the bias is in it, too
        attention_mask = None if attention_mask is None else attention_mask.clamp(max=0)
        unscaled = _alibi(self, hidden_states)
        scale = sqrt(self.head_dim)
        bias = lambda positions: unscaled(positions) / scale  # noqa: E731
    return self.dense(
        _attend(self, query, key, value, attention_mask, self.inv_norm_factor, bias)
    ), None


def _mpt(
    self: Any, hidden_states: Tensor, position_bias: Tensor, attention_mask: Tensor, **_: Any
) -> Output:
    together = self.Wqkv(hidden_states)
    if self.clip_qkv:
        together = together.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    query, key, value = (
        x.unflatten(2, (self.n_heads, -1)).transpose(1, 2) for x in together.chunk(3, dim=2)
    )
    mask = None
    if self.ttc_attention in ALL_MASK_ATTENTION_FUNCTIONS:  # true where a token is hidden
        mask = torch.where(attention_mask, torch.finfo(hidden_states.dtype).min, 0.0).to(
            hidden_states.dtype
        )
    bias = lambda positions: position_bias[:, 0, :positions]  # noqa: E731
    return self.out_proj(_attend(self, query, key, value, mask, self.softmax_scale, bias)), None


def _mpt_model(self: Any, *args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
    """The model gets an unused mask where none is built, since it would fail without."""
    if self.ttc_attention not in ALL_MASK_ATTENTION_FUNCTIONS:
        attention_mask = torch.zeros(1, 1, 1, 1, device=self.wte.weight.device)
    return self.original.forward(self, *args, attention_mask=attention_mask, **kwargs)


def _xglm(
    self: Any,
    hidden_states: Tensor,
    key_value_states: Tensor | None = None,
    past_key_values: Any = None,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> Output:
    if key_value_states is not None:
        raise UnsupportedModel("it attends to the states of another model")
    together = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
    query, key, value = (x.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for x in together)
    return self.out_proj(_attend(self, query, key, value, attention_mask, self.scaling)), None


FORWARDS: dict[str, Callable[..., Any]] = {
    f"transformers.models.{family}.modeling_{family}.{module}": forward
    for family, module, forward in (
        ("bloom", "BloomAttention", _bloom),
        ("falcon", "FalconAttention", _falcon),
        ("mpt", "MptAttention", _mpt),
        ("mpt", "MptModel", _mpt_model),
        ("xglm", "XGLMAttention", _xglm),
    )
}
"""The functions, by the classes of the modules."""
