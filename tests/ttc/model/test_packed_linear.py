"""Packed linear layers against the layers that they replace."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ttc.model.packed_linear import PackedLinear, can_pack, pack_linears

SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("rows", [1, 8, 50])
@pytest.mark.parametrize(
    "build",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
        lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    ],
)
@torch.no_grad()
def test_the_same_logits(build: type, rows: int) -> None:
    torch.manual_seed(0)
    plain = build().to(torch.bfloat16).eval()
    for parameter in plain.parameters():  # biases too
        parameter.normal_(std=0.2)
    if not can_pack(plain):
        pytest.skip("this CPU has no bfloat16 kernels")
    packed = copy.deepcopy(plain)
    pack_linears(packed)
    assert not any(type(m) is nn.Linear for m in packed.modules())
    tokens = torch.randint(0, 64, (1, rows))
    expected, found = plain(tokens).logits.float(), packed(tokens).logits.float()
    exact = copy.deepcopy(plain).float()(tokens).logits
    rounding = float((expected - exact).abs().max())
    assert float((found - exact).abs().max()) <= 2 * rounding + 1e-2 * float(exact.abs().max())


@torch.no_grad()
def test_siblings_compute_once_and_answer_any_order() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = (
                nn.Linear(32, size, dtype=torch.bfloat16) for size in (48, 16)
            )

    block = Block()
    if not can_pack(block):
        pytest.skip("this CPU has no bfloat16 kernels")
    plain = copy.deepcopy(block)
    pack_linears(block)
    assert (
        isinstance(block.gate_proj, PackedLinear) and block.gate_proj.shared is block.up_proj.shared
    )
    calls = []
    product = block.gate_proj.shared.product
    block.gate_proj.shared.product = lambda x: (calls.append(1), product(x))[1]
    first, second = (torch.randn(3, 32, dtype=torch.bfloat16) for _ in range(2))
    for x in (first, second):
        torch.testing.assert_close(block.gate_proj(x), plain.gate_proj(x), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(block.up_proj(x), plain.up_proj(x), rtol=2e-2, atol=2e-2)
    assert len(calls) == 2
    torch.testing.assert_close(block.up_proj(first), plain.up_proj(first), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(
        block.gate_proj(second), plain.gate_proj(second), rtol=2e-2, atol=2e-2
    )
