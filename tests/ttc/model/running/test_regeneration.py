"""Keys and values that come out of stored inputs again, and what is left out on the way."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.standins import small_models
from tests.helpers.models import build
from ttc.attention.hf_hook import IMPLEMENTATION, attention_set_to
from ttc.model.running.regeneration import Regeneration
from ttc.model.running.runner import HuggingFaceRunner


@torch.no_grad()
def keys_and_values(model: Any, tokens: list[int]) -> list[tuple[Tensor, Tensor]]:
    """What plain transformers puts into its cache: (kv_heads, tokens, dim) of each layer."""
    with attention_set_to(model, "eager"):
        cache = model(torch.tensor([tokens]), use_cache=True).past_key_values
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


@torch.no_grad()
def inputs_of(model: Any, regeneration: Regeneration, tokens: list[int]) -> list[Tensor]:
    """What plain transformers gives to the attention module of each layer: (tokens, width)."""
    found, handles = list[Tensor](), []
    for module in regeneration.modules:

        def before(_: Any, args: Any, kwargs: Any) -> None:
            found.append((args or list(kwargs.values()))[0][0])

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
    with attention_set_to(model, "eager"):
        model(torch.tensor([tokens]), use_cache=False)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2", "gemma3", "phi3"])
def test_kv_is_what_transformers_keeps_in_its_cache(family: str) -> None:
    model = build(family)
    regeneration = Regeneration(model, HuggingFaceRunner(model).shapes)
    tokens = [3, 1, 4, 1, 5, 9, 2]  # fewer than the window of any, so that the cache keeps all
    expected, inputs = keys_and_values(model, tokens), inputs_of(model, regeneration, tokens)
    rows = torch.tensor([6, 0, 3, 4])
    for layer, (kv, given) in enumerate(zip(expected, inputs, strict=True)):
        assert regeneration.shapes[layer].input_dim == given.shape[-1] == 32
        for one, other in zip(regeneration(layer, given[rows], rows), kv, strict=True):
            torch.testing.assert_close(one, other[:, rows], rtol=1e-5, atol=1e-5)


def test_trying_it_out_leaves_the_kv_alone_that_layers_share() -> None:
    # its first two layers leave KV for the last two
    model = small_models.build("gemma3n_text: shared KV")
    expected = model(torch.tensor([[3, 1, 4]])).logits
    regeneration = Regeneration(model, HuggingFaceRunner(model).shapes)
    assert [shape.input_dim for shape in regeneration.shapes] == [32, 32, None, None]
    with attention_set_to(model, "sdpa"):
        assert torch.equal(model(torch.tensor([[3, 1, 4]])).logits, expected)


def test_query_projections_are_left_out_and_there_again_afterwards() -> None:
    model = build("opt")
    regeneration = Regeneration(model, HuggingFaceRunner(model).shapes)
    attention = model.model.decoder.layers[0].self_attn
    called, own = list[str](), attention.q_proj
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        getattr(attention, name).register_forward_hook(lambda *_, name=name: called.append(name))
    regeneration(0, torch.randn(3, 32), torch.arange(3))
    assert called == ["k_proj", "v_proj"] and attention.q_proj is own


@pytest.mark.parametrize(
    ("dtype", "factor", "taken"),
    [
        (torch.bfloat16, 1.1, False),
        (torch.bfloat16, 1.04, False),
        (torch.bfloat16, 1.0, True),
        (torch.float16, 1.1, False),
        (torch.float32, 1.001, False),
        (torch.float32, 1.0, True),
    ],
)
def test_keys_that_come_out_otherwise_are_not_taken(
    dtype: torch.dtype, factor: float, taken: bool
) -> None:
    """The six rows that are tried come out larger than in a pass of nine rows."""
    model = build("opt", dtype)
    shapes = HuggingFaceRunner(model).shapes
    k_proj = model.model.decoder.layers[1].self_attn.k_proj
    handle = k_proj.register_forward_hook(
        lambda module, args, out: out * (factor if out.shape[1] == 6 else 1.0)
    )
    widths = [shape.input_dim for shape in Regeneration(model, shapes).shapes]
    assert widths == [32, 32 if taken else None]
    handle.remove()
    assert [shape.input_dim for shape in Regeneration(model, shapes).shapes] == [32, 32]


def test_nothing_is_left_in_a_model_whose_engine_is_gone() -> None:
    model = build("llama")
    regeneration = Regeneration(model, HuggingFaceRunner(model).shapes)
    assert sum(len(module._forward_pre_hooks) for module in model.modules()) == 2
    assert model.config._attn_implementation == IMPLEMENTATION
    del regeneration
    gc.collect()
    assert not any(module._forward_pre_hooks for module in model.modules())
