"""What takes the place of transformers' functions for single tokens, against these functions."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as plain

from experiments.standins import small_models
from tests.helpers.tokenizers import Letters
from ttc import Engine
from ttc.recurrent.single_token import convolution, gated_delta_rule


def not_called(*_: object, **__: object) -> None:
    raise AssertionError("the replaced function ran")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("normed", [True, False])
def test_gated_delta_rule_is_that_of_transformers(
    dtype: torch.dtype, heads: int, normed: bool
) -> None:
    torch.manual_seed(0)
    query, key = (torch.randn(3, 1, 2, 8, dtype=dtype) for _ in range(2))
    value, beta = torch.randn(3, 1, heads, 6, dtype=dtype), torch.rand(3, 1, heads, dtype=dtype)
    decay, state = -torch.rand(3, 1, heads), torch.randn(3, heads, 8, 6)
    options = {
        "g": decay,
        "beta": beta,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": normed,
    }
    expected = plain.torch_recurrent_gated_delta_rule(
        query, key, value, initial_state=state.clone(), **options
    )
    out, after = gated_delta_rule(not_called)(query, key, value, initial_state=state, **options)
    assert after is state  # changed in place
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(after, expected[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("bias", "activation"), [(None, "silu"), (True, None)])
def test_convolution_is_that_of_transformers(
    dtype: torch.dtype, bias: bool | None, activation: str | None
) -> None:
    torch.manual_seed(0)
    new, state, weight = torch.randn(3, 5, 1), torch.randn(3, 5, 4), torch.randn(5, 4)
    added = None if bias is None else torch.randn(5).to(dtype)
    new, state, weight = (x.to(dtype) for x in (new, state, weight))
    before = state.clone()
    expected = plain.causal_conv1d_update(new, before, weight, added, activation)
    torch.testing.assert_close(
        convolution(not_called)(new, state, weight, added, activation), expected
    )
    assert torch.equal(state, before)


@pytest.mark.parametrize("several", [True, False])
def test_several_tokens_and_a_beginning_are_left_to_transformers(several: bool) -> None:
    torch.manual_seed(0)
    tokens, state = (3, torch.randn(1, 2, 4, 4)) if several else (1, None)
    query, key, value = (torch.randn(1, tokens, 2, 4) for _ in range(3))
    options = {
        "g": -torch.rand(1, tokens, 2),
        "beta": torch.rand(1, tokens, 2),
        "output_final_state": True,
    }
    expected = plain.torch_recurrent_gated_delta_rule(
        query, key, value, initial_state=state, **options
    )
    found = gated_delta_rule(plain.torch_recurrent_gated_delta_rule)(
        query, key, value, initial_state=state, **options
    )
    assert all(map(torch.equal, found, expected))


def test_a_replacement_that_gives_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_models.build("qwen3_5_text")
    recurrent = Engine(model, Letters()).runner.recurrent
    assert recurrent is not None and all(module.replaced for module in recurrent.modules)
    monkeypatch.setattr(
        "ttc.recurrent.modules.REPLACEMENTS",
        {"causal_conv1d_update": lambda own: lambda *args, **kw: 1.1 * own(*args, **kw)},
    )
    recurrent = Engine(model, Letters()).runner.recurrent
    assert recurrent is not None and not any(module.replaced for module in recurrent.modules)
