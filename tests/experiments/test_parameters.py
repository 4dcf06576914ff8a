"""Parameters read from the heads of a model's files."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.runs.parameters import count_parameters, flops, run_parameters

WIDTHS = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24}
SIZE = WIDTHS | {"num_hidden_layers": 2, "num_attention_heads": 2}


def saved(folder: Path, tied: bool) -> tuple[str, int]:
    model = LlamaForCausalLM(LlamaConfig(**SIZE, tie_word_embeddings=tied))
    model.save_pretrained(folder, max_shard_size="4KB")
    return str(folder), sum(p.numel() for p in model.parameters())


def test_a_folder_of_several_files_counts_as_the_model_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tied, untied = saved(tmp_path / "tied", True), saved(tmp_path / "untied", False)
    assert len(list((tmp_path / "tied").glob("*.safetensors"))) > 1
    assert count_parameters(tied[0]) == tied[1] == untied[1] - 20 * 16
    assert count_parameters(untied[0]) == untied[1]
    assert count_parameters("nobody/knows-this") is None


def test_the_verifiers_model_is_the_largest_that_it_names(tmp_path: Path) -> None:
    small, large = saved(tmp_path / "small", True), saved(tmp_path / "large", False)
    assert run_parameters(small[0], {"_target_": None}) == {"model": small[1], "verifier": small[1]}
    parts = [{"model": large[0]}, {"_target_": "verifiers.ConfidenceVerifier"}]
    ensemble = {"parts": parts, "inner": {"model": small[0]}}
    assert run_parameters(small[0], ensemble)["verifier"] == large[1]
    assert run_parameters(small[0], {"model": "nobody/knows-this"}) == {"model": small[1]}


def test_flops_count_what_was_computed() -> None:
    usage = {"prompt_tokens": 5, "shared_tokens": 99, "recomputed_tokens": 2, "generated_tokens": 3}
    rated = usage | {"verifier_tokens": 4}
    assert flops(usage, {"model": 10}) == 2 * 10 * 10
    assert flops(rated, {"model": 10, "verifier": 7}) == 2 * (10 * 10 + 7 * 4)
    assert flops(rated, {"model": 10}) is None and flops(usage, {}) is None
