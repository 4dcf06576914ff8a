"""How long a context a model's positions allow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config, Phi3ForCausalLM

from ttc import Engine, InvalidInput
from ttc.errors import ContextExceeded
from ttc.model.limits import ModelLimits, context_length


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 64),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 64),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, 64),
        (
            {
                "rope_parameters": {
                    "rope_type": "dynamic",
                    "factor": 2.0,
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 32,
                }
            },
            32,
        ),
    ],
)
def test_frequencies_that_depend_on_a_pass_bound_the_context(
    settings: dict[str, Any], most: int
) -> None:
    assert context_length(LlamaConfig(max_position_embeddings=64, **settings)) == most


def limits_of(config: Any) -> ModelLimits:
    model = SimpleNamespace(config=config, modules=lambda: [])
    return ModelLimits.of(model)


def test_a_context_that_is_shorter_than_the_configurations_says_why() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    short = rope | {"original_max_position_embeddings": 32}
    limits = limits_of(LlamaConfig(max_position_embeddings=64, rope_parameters=short))
    assert limits.context_length == 32
    with pytest.raises(ContextExceeded, match="states 64, but its rotary frequencies, 'dynamic'"):
        limits.check_context(33)
    for parameters in (rope, {"rope_type": "default", "rope_theta": 1e4}):
        limits = limits_of(LlamaConfig(max_position_embeddings=64, rope_parameters=parameters))
        assert (limits.context_length, limits.because) == (64, "")


def test_longrope_is_served_up_to_its_original_length() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 2,
        "long_factor": [2.0] * 2,
    }
    config = Phi3Config(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        pad_token_id=0,
        rope_parameters=rope | {"original_max_position_embeddings": 32},
        eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    engine = Engine(Phi3ForCausalLM(config).eval(), None)
    reason = r"context of 32 \(its configuration states 128, .* 'longrope', change for all tokens"
    with pytest.raises(InvalidInput, match=reason):
        engine.root(list(range(1, 40)))
    with pytest.raises(InvalidInput, match=r"context of 32 tokens \(its configuration states 128"):
        engine.root(list(range(1, 33)))
    branch = engine.root(list(range(1, 30)))
    engine.generate([branch], 10)
    assert (len(branch.tokens), branch.finish_reason) == (32, "context")
    assert engine.model_changes() == 0  # its rotary embedding is made again in each pass
