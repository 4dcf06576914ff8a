"""Where `generate` with its cache and a run without one differ, a model is refused with the way
out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf

from tests.helpers.engines import GREEDY
from tests.helpers.models import of_config, prompt
from ttc import Engine, UnsupportedModel
from ttc.model.check.model_check import examine
from ttc.model.loading.reward_heads import HeadedModel


def generated(model: Any, tokens: list[int], count: int) -> list[int]:
    """What transformers' own greedy `generate` writes."""
    ids = torch.tensor([tokens])
    options = {"max_new_tokens": count, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, **options)[0, len(tokens) :].tolist()


def assert_served(model: Any, tokens: list[int]) -> None:
    engine = Engine(copy.deepcopy(model), None)
    branch = engine.root(tokens)
    engine.generate([branch], 12, sampling=GREEDY)
    assert branch.generated == generated(model, tokens, 12)


CONTRADICTIONS = {
    "llama": (hf.LlamaConfig, {"sliding_window": 8}, "sliding_window"),
    "llama, a long window": (hf.LlamaConfig, {"sliding_window": 200}, "sliding_window"),
    "llama, chunks": (hf.LlamaConfig, {"attention_chunk_size": 8}, "attention_chunk_size"),
    "olmo 2": (hf.Olmo2Config, {"sliding_window": 8}, "sliding_window"),
    "layer types": (
        hf.LlamaConfig,
        {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
        "layer_types",
    ),
    "a window of one token": (hf.MistralConfig, {"sliding_window": 1}, "sliding_window"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_window_that_only_the_cache_applies_is_refused_with_the_way_out(name: str) -> None:
    config_class, settings, field = CONTRADICTIONS[name]
    reason = rf"(?s)transformers contradicts itself.*{field} .*config\.json"
    with pytest.raises(UnsupportedModel, match=reason):
        Engine(of_config(config_class, **settings), None)


@pytest.mark.few
@pytest.mark.parametrize("way_out", [None, 256])
@pytest.mark.parametrize("name", ["llama", "llama, chunks", "olmo 2"])
def test_the_way_out_leads_to_what_generate_gives(name: str, way_out: int | None) -> None:
    config_class, settings, field = CONTRADICTIONS[name]
    model, tokens = of_config(config_class, **settings), prompt(1, 20)
    assert generated(model, tokens, 12) != generated(of_config(config_class), tokens, 12)
    setattr(model.config, field, way_out)
    assert_served(model, tokens)


@pytest.mark.few
@pytest.mark.parametrize(
    ("config_class", "settings"),
    [
        (hf.LlamaConfig, {"sliding_window": 256}),  # its context
        (hf.LlamaConfig, {"sliding_window": 8, "layer_types": ["full_attention"] * 2}),
        (hf.MistralConfig, {"sliding_window": 2}),
        (hf.MistralConfig, {"sliding_window": 8}),
        (hf.Qwen2Config, {"sliding_window": 8, "use_sliding_window": False}),
        (hf.Qwen2Config, {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
    ],
)
def test_windows_that_both_apply_or_neither_are_served_as_generate_does(
    config_class: Any,
    settings: dict[str, Any],
) -> None:
    assert_served(of_config(config_class, **settings), prompt(1, 20))


def test_a_reward_model_does_not_generate_so_no_cache_says_anything_else() -> None:
    model = of_config(hf.LlamaConfig, sliding_window=8)
    examine(HeadedModel(model.model, torch.nn.Linear(32, 1)))
