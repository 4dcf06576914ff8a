"""Gated delta nets and convolutions on one new token of each sequence, in fewer operations.

transformers' functions for a CPU copy the state several times per token; these change it in place.
Layers whose file has functions of these names call these instead, and the check at load compares
them. Elsewhere than on a CPU, with several tokens, or from no state, they call what they replace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from ttc.model.replaced_functions import Function


def gated_delta_rule(replaced: Function) -> Function:
    """S = e^g S (I - beta k k') + beta k v', and q' S (Yang et al., 2025, "Gated Delta Networks",
    Eq. 10).

    S, the state, is (sequences, heads, key_dim, value_dim), and is read once for both products:
    with r = e^g, q' S_new = r q' S + (q' k) delta where delta = beta (v - r k' S).
    """

    def rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if initial_state is None or query.shape[1] != 1 or query.device.type != "cpu":
            others["output_final_state"] = output_final_state
            others["use_qk_l2norm_in_kernel"] = use_qk_l2norm_in_kernel
            unchanged: tuple[Tensor, Tensor | None] = replaced(
                query, key, value, g=g, beta=beta, initial_state=initial_state, **others
            )
            return unchanged
        times = value.shape[2] // query.shape[2]
        state = initial_state.float()
        q, k, v = (x[:, 0].float() for x in (query, key, value))  # (sequences, heads, dim)
        if use_qk_l2norm_in_kernel:
            q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        q = q * q.shape[-1] ** -0.5
        if times > 1:  # each head of queries and keys serves so many heads of values
            q, k = (x.repeat_interleave(times, 1) for x in (q, k))
        decay = g[:, 0].float().exp()[..., None]
        rate = beta[:, 0].float()[..., None]
        read = torch.stack((k, q), 2) @ state  # (sequences, heads, 2, value_dim)
        delta = (v - decay * read[:, :, 0]) * rate
        out = decay * read[:, :, 1] + (q * k).sum(-1, keepdim=True) * delta
        state.mul_(decay[..., None]).addcmul_(k[..., None], delta[:, :, None])
        return out[:, None].to(query.dtype), state

    return rule


def convolution(replaced: Function) -> Function:
    """A convolution over each channel's last tokens, the new one among them: (sequences, channels,
    kernel)."""

    def update(
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        single = hidden_states.shape[-1] == 1 and hidden_states.device.type == "cpu"
        if not single or conv_state.shape[-1] != weight.shape[1]:
            unchanged: Tensor = replaced(hidden_states, conv_state, weight, bias, activation)
            return unchanged
        seen = torch.cat((conv_state[..., 1:], hidden_states), -1)
        conv_state.copy_(seen)
        wide = torch.promote_types(weight.dtype, torch.float32)
        out = (seen.to(wide) * weight.to(wide)).sum(-1, keepdim=True)
        if bias is not None:
            out = out + bias[:, None]
        out = out.to(weight.dtype)
        return (out if activation is None else ACT2FN[activation](out)).to(hidden_states.dtype)

    return update


REPLACEMENTS: dict[str, Callable[[Function], Function]] = {
    "torch_recurrent_gated_delta_rule": gated_delta_rule,
    "causal_conv1d_update": convolution,
}
"""By the names of transformers' functions: what makes their replacement of them."""
