"""How long a context a model's positions allow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config, Phi3ForCausalLM

from ttc import Engine, InvalidInput
from ttc.errors import ContextExceeded
from ttc.model.limits import ModelLimits

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        DYNAMIC,
    ],
)
def test_frequencies_that_depend_on_a_pass_bound_the_context_and_say_why(
    rope: dict[str, Any],
) -> None:
    def limits(**more: Any) -> ModelLimits:
        config = LlamaConfig(max_position_embeddings=64, rope_parameters=rope | more)
        return ModelLimits.of(SimpleNamespace(config=config, modules=lambda: []))

    assert (limits().context_length, limits().because) == (64, "")
    if rope is DYNAMIC:
        short = limits(original_max_position_embeddings=32)
        assert short.context_length == 32
        with pytest.raises(ContextExceeded, match=r"states 64, but its rotary .*, 'dynamic'"):
            short.check_context(33)


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
