"""Multimodal checkpoints load their text decoder, exact against the whole model on text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from experiments.standins.small_models import config_of, tokens
from tests.helpers.tiers import slow
from tests.ttc.model.loading.test_loading import save_tokenizer
from ttc import Engine, Sampling, Streamed, UnsupportedModel
from ttc.model.loading.load import load

WHOLE = {"qwen3_vl", "cohere2_vision"}
"""Families whose decoder has no class of its own with the same logits: the whole without its other
parts."""


def save(kind: str, folder: Path) -> Any:
    """Write a small random multimodal model of a family into `folder`."""
    config = config_of(kind)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """What plain transformers generates."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(count):
            ids = torch.cat(
                [ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], 1
            )
    return ids[0, len(prompt) :].tolist()


OWN_NAMES = ["kimi_k25", "qianfan_ocr", "minimax_m3_vl"]
"""Families whose files name the decoder's weights otherwise than its own class does."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN_NAMES)
def test_files_that_name_the_decoder_in_their_own_way_load(tmp_path: Path, kind: str) -> None:
    whole = save(kind, tmp_path)
    model, tokenizer = load(tmp_path, device="cpu", dtype="float32")
    assert_same_text(whole, model, tokenizer)


def test_kimi_files_as_published_load(tmp_path: Path) -> None:
    whole = save("kimi_k25", tmp_path)
    rename(tmp_path, r"^language_model\.model\.blocks\.", "language_model.model.layers.")
    assert_same_text(whole, *load(tmp_path, device="cpu", dtype="float32"))


def parts_beside_text(folder: Path) -> list[str]:
    """The weights in the files that are not the decoder's."""
    names = load_file(folder / "model.safetensors")
    return [
        name
        for name in names
        if not any(part in name for part in ("language_model", "text_model", "lm_head"))
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "kind",
    [
        "gemma3",
        "mistral3",
        *map(slow, ("gemma4", "llama4", "qwen3_5", "qwen3_vl", "cohere2_vision")),
    ],
)
def test_the_decoder_gives_what_the_whole_model_gives_on_text(tmp_path: Path, kind: str) -> None:
    whole = save(kind, tmp_path)
    others, weights = parts_beside_text(tmp_path), load_file(tmp_path / "model.safetensors")
    assert others
    save_file(
        {n: w for n, w in weights.items() if n not in others},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    model, tokenizer = load(tmp_path, device="cpu", dtype="float32")
    assert sum(w.numel() for w in model.parameters()) < sum(w.numel() for w in whole.parameters())
    assert type(model).__name__.endswith(
        "ForConditionalGeneration" if kind in WHOLE else "ForCausalLM"
    )
    assert_same_text(whole, model, tokenizer)


def assert_same_text(whole: Any, model: Any, tokenizer: Any) -> None:
    """Logits within the bound, and the tokens of two forks."""
    prompt = tokens(3, 40)
    with torch.inference_mode():
        expected = whole(input_ids=torch.tensor([prompt])).logits
        found = model(input_ids=torch.tensor([prompt])).logits
    assert float((expected - found).abs().max()) <= 1e-4 + 1e-5 * float(expected.abs().max())
    engine = Engine(model, tokenizer)
    engine.limits.eos_ids = frozenset()
    root = engine.root(prompt)
    for branch in engine.fork(root, 2):
        engine.generate([branch], 12, sampling=Sampling(0))
        assert branch.generated == greedy(whole, prompt, 12)


def rename(folder: Path, old: str, new: str) -> None:
    """Give the weights in a folder other names."""
    weights = load_file(folder / "model.safetensors")
    renamed = {re.sub(old, new, name): weight for name, weight in weights.items()}
    assert any(re.search(old, name) for name in weights)
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("inner", "head"),
    [("language_model.model.", "language_model.lm_head."), ("model.language_model.", "lm_head.")],
)
def test_names_of_old_and_new_checkpoints_are_understood(
    tmp_path: Path, inner: str, head: str
) -> None:
    whole = save("llava", tmp_path)
    rename(tmp_path, r"^model\.language_model\.|^language_model\.model\.", inner)
    rename(tmp_path, r"^lm_head\.|^language_model\.lm_head\.", head)
    assert_same_text(whole, *load(tmp_path, device="cpu", dtype="float32"))


def test_the_decoder_needs_no_package_of_the_vision_tower(tmp_path: Path) -> None:
    # towers are timm's
    text = AutoModelForCausalLM.from_config(config_of("gemma3n_text"), dtype=torch.float32).eval()
    text.save_pretrained(tmp_path)
    rename(tmp_path, r"^model\.", "model.language_model.")
    config = config_of("gemma3n")
    config.text_config = text.config
    config.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    assert_same_text(text, *load(tmp_path, device="cpu", dtype="float32"))


def test_a_placement_takes_the_decoder_alone(tmp_path: Path) -> None:
    whole = save("mistral3", tmp_path)
    engine = Engine.from_pretrained(tmp_path, device="cpu", dtype="float32", placement=Streamed())
    engine.limits.eos_ids = frozenset()
    root = engine.root(tokens(4, 20))
    engine.generate([root], 6, sampling=Sampling(0))
    assert root.generated == greedy(whole, tokens(4, 20), 6)


def test_weights_that_the_files_lack_are_named(tmp_path: Path) -> None:
    save("mistral3", tmp_path)
    rename(tmp_path, "self_attn", "attention")
    with pytest.raises(
        UnsupportedModel,
        match=r"lack \d+ weights of a MistralForCausalLM, among them model.layers.0.s",
    ):
        load(tmp_path, device="cpu", dtype="float32")
