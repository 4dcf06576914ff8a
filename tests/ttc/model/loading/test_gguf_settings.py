"""Settings and tensors of .gguf files are taken, change nothing, or are refused by name."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from tests.helpers import llama_cpp
from tests.helpers.gguf_files import VOCAB, write_gguf
from tests.helpers.parts import installed
from ttc import UnsupportedModel
from ttc.model.loading.load import load, load_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
QUANTIZED = [False, *(True for _ in installed("quantized", "True"))]
BASE = {"rope.freq_base": 10_000.0}
WIDE = {"attention.key_length": 32, "attention.value_length": 32}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 64,
}
YARN_KEYS = {
    **BASE,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + 0.1 * n for n in range(6)],
    "long_factor": [2.0 + n for n in range(6)],
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def llama3_factors() -> list[float]:
    """As Llama 3.1 divides its frequencies."""
    factors = []
    for n in range(0, 16, 2):
        turns = 64 / (2 * math.pi * 10_000 ** (n / 16))
        smooth = min(max((turns - 1) / 3, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / 8 + smooth))
    return factors


def sized(config: Any, **more: Any) -> Any:
    return config(**(SIZES | more))


GEMMA3 = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
Case = tuple[str, Any, dict[str, Any], dict[str, list[float]]]
CASES: dict[str, Case] = {
    "llama3": (
        "llama",
        sized(hf.LlamaConfig, rope_parameters=LLAMA3),
        {**BASE, "rope.dimension_count": 16},
        {"rope_freqs.weight": llama3_factors()},
    ),
    "linear": (
        "llama",
        sized(
            hf.LlamaConfig,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4},
        ),
        {"rope.freq_base": 5e4, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {},
    ),
    "qwen2": ("qwen2", sized(hf.Qwen2Config, rope_parameters=YARN), YARN_KEYS, {}),
    "qwen3": (
        "qwen3",
        sized(hf.Qwen3Config, head_dim=32, rope_parameters=YARN),
        YARN_KEYS | WIDE,
        {},
    ),
    "qwen2moe": (
        "qwen2moe",
        sized(
            hf.Qwen2MoeConfig, **EXPERTS, shared_expert_intermediate_size=64, rope_parameters=YARN
        ),
        YARN_KEYS,
        {},
    ),
    "qwen3moe": (
        "qwen3moe",
        sized(hf.Qwen3MoeConfig, **EXPERTS, norm_topk_prob=True, head_dim=32, rope_parameters=YARN),
        YARN_KEYS | WIDE,
        {},
    ),
    "gemma2": (
        "gemma2",
        sized(
            hf.Gemma2Config,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=32,
            final_logit_softcapping=7.0,
            attn_logit_softcapping=9.0,
        ),
        WIDE,
        {},
    ),
    "gemma3": (
        "gemma3",
        sized(
            hf.Gemma3TextConfig,
            num_hidden_layers=7,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=32,
            final_logit_softcapping=5.0,
            rope_parameters=GEMMA3,
        ),
        {
            **WIDE,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        {},
    ),
    "phi3": (
        "phi3",
        sized(
            hf.Phi3Config,
            pad_token_id=None,
            original_max_position_embeddings=64,
            rope_parameters=LONGROPE,
        ),
        {
            **BASE,
            "rope.dimension_count": 12,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(64)),
            "attention.sliding_window": 0,
        },
        {
            "rope_factors_long.weight": LONGROPE["long_factor"],  # type: ignore[dict-item]
            "rope_factors_short.weight": LONGROPE["short_factor"],  # type: ignore[dict-item]
        },
    ),
    "starcoder2": (
        "starcoder2",
        sized(
            hf.Starcoder2Config, rope_parameters={"rope_type": "default", "rope_theta": 999_999.0}
        ),
        {"rope.freq_base": 999_999.0},
        {},
    ),
    "stablelm": (
        "stablelm",
        sized(
            hf.StableLmConfig,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 5e4,
                "partial_rotary_factor": 0.5,
            },
        ),
        {"rope.dimension_count": 8, "rope.freq_base": 5e4, "use_parallel_residual": False},
        {},
    ),
}
TOKENS = torch.randint(0, 90, (150,), generator=torch.Generator().manual_seed(0)).tolist()


def written(case: Case, file: Path) -> torch.Tensor:
    """Writes a random model, and gives its own log-probabilities after `TOKENS`."""
    architecture, config, keys, tensors = case
    torch.manual_seed(0)
    plain: Any = hf.AutoModelForCausalLM.from_config(config).eval()
    for weight in plain.parameters():
        weight.data += torch.randn_like(weight) * (0.2 if weight.ndim > 1 else 0.1)
    write_gguf(file, architecture, plain, keys, tensors)
    return after(plain)


@torch.no_grad()
def after(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([TOKENS])).logits
    return logits[0, -1].log_softmax(-1)


@pytest.mark.few
@pytest.mark.parametrize("case", CASES)
def test_a_file_is_the_model_of_its_settings(tmp_path: Path, case: str) -> None:
    expected = written(CASES[case], tmp_path / "m.gguf")
    for quantized in QUANTIZED:
        model, _ = load(tmp_path / "m.gguf", device="cpu", dtype="float32", quantized=quantized)
        assert torch.allclose(after(model), expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs pip install xllamacpp")
@pytest.mark.parametrize("case", CASES)
def test_llama_cpp_computes_the_same(tmp_path: Path, case: str) -> None:
    expected = written(CASES[case], tmp_path / "m.gguf")
    theirs = llama_cpp.logprobs(llama_cpp.server(tmp_path / "m.gguf"), TOKENS, VOCAB)
    assert torch.allclose(theirs, expected, atol=5e-3)  # its GELU is a table of 16 bits


def test_the_bounds_of_yarn_are_those_of_the_file(tmp_path: Path) -> None:
    """llama.cpp reads them for other architectures alone."""
    bounds = {"beta_fast": 3.0, "beta_slow": 2.0}
    keys = YARN_KEYS | {f"rope.scaling.yarn_{name}": value for name, value in bounds.items()}
    config = sized(hf.LlamaConfig, rope_parameters=YARN | bounds)
    expected = written(("llama", config, keys, {}), tmp_path / "m.gguf")
    model, _ = load(tmp_path / "m.gguf", device="cpu", dtype="float32")
    assert torch.allclose(after(model), expected, atol=1e-4)


def small(file: Path, keys: dict[str, Any], **more: Any) -> None:
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(sized(hf.LlamaConfig, num_hidden_layers=1))
    write_gguf(file, "llama", model, keys, **more)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logit_scale", 0.5),
        ("attention.scale", 0.5),
        ("residual_scale", 2.0),
        ("attention.sliding_window", 8),
        ("attention.causal", False),
        ("attention.value_length", 8),
        ("rope.dimension_count", 8),
        ("rope.scaling.type", "other"),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("expert_count", 4),
        ("a_setting_of_tomorrow", 1),
    ],
)
def test_a_setting_that_is_not_read_is_named(tmp_path: Path, key: str, value: Any) -> None:
    small(tmp_path / "m.gguf", {key: value})
    with pytest.raises(UnsupportedModel, match=rf"llama\.{key} to .*own folder"):
        load(tmp_path / "m.gguf", device="cpu")


def test_a_setting_that_changes_nothing_is_read(tmp_path: Path) -> None:
    keys = {"logit_scale": 1.0, "attention.scale": 0.25, "expert_count": 0, "pooling_type": 0}
    small(tmp_path / "m.gguf", keys | {"attention.sliding_window": 256})
    load(tmp_path / "m.gguf", device="cpu")


@pytest.mark.parametrize("quantized", QUANTIZED)
def test_a_tensor_without_a_place_is_named(tmp_path: Path, quantized: bool) -> None:
    small(tmp_path / "m.gguf", {}, tensors={"blk.0.attn_q.bias": [1.0] * 64})
    with pytest.raises(UnsupportedModel, match=r"no place for.*blk\.0\.attn_q\.bias"):
        load(tmp_path / "m.gguf", device="cpu", quantized=quantized)


def tokenizer_of(tmp_path: Path, **keys: Any) -> Any:
    tokens = [*(chr(code) for code in range(33, 127)), "12", "<end>"]
    tokenizer = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [1] * 95 + [3],
        "merges": ["1 2"],
        "eos_token_id": 95,
    }
    small(tmp_path / "m.gguf", {}, tokenizer=tokenizer | keys)
    return load_tokenizer(str(tmp_path / "m.gguf"))


def test_text_is_cut_as_the_file_says(tmp_path: Path) -> None:
    for pre, count in (("gpt-2", 1), ("starcoder", 2), ("qwen2", 2), ("llama-bpe", 1)):
        assert len(tokenizer_of(tmp_path, pre=pre).encode("12")) == count
    with pytest.raises(UnsupportedModel, match=r"the way 'tomorrow'"):
        tokenizer_of(tmp_path, pre="tomorrow")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.ggml\.suppress_tokens"):
        tokenizer_of(tmp_path, pre="gpt-2", suppress_tokens=[1])
