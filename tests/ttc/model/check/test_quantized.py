"""Quantized checkpoints run as in plain transformers, or are refused by name before their weights
are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.ttc.model.loading.test_loading import save_tokenizer
from ttc import Engine, Sampling, Streamed, UnsupportedModel
from ttc.model.check.quantized import check_rows_apart

VOCAB, PROMPT = 64, [3, 9, 20, 41, 5]


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def save(folder: Path, quantization: Any = None, dtype: torch.dtype = torch.float32) -> None:
    """Write a small random model into `folder`, quantized by transformers."""
    build().save_pretrained(folder / "plain")
    model = AutoModelForCausalLM.from_pretrained(
        folder / "plain", quantization_config=quantization, dtype=dtype
    )
    model.save_pretrained(folder)
    save_tokenizer(folder)


def say(folder: Path, **settings: Any) -> None:
    """Let the configuration in `folder` name a quantization."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": settings}))


def assert_like_plain(folder: Path, dtype: torch.dtype, kind: str) -> Engine:
    """The engine has layers of that kind, and gives the tokens that plain transformers gives."""
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    engine = Engine.from_pretrained(folder, device="cpu", dtype=dtype)
    engine.limits.eos_ids = frozenset()
    assert type(engine.model.model.layers[0].mlp.down_proj).__name__ == kind
    root = engine.root(PROMPT)
    first, second = engine.fork(root, 2)
    engine.extend([second], [[7, 8]]).result()
    engine.generate([first, second], 12, sampling=Sampling(0))
    for branch in (first, second):
        end = len(branch.tokens) - 12
        found = plain.generate(
            torch.tensor([branch.tokens[:end]]), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        assert branch.tokens == found[0].tolist() and len(set(branch.tokens[end:])) > 3
    return engine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_torchao_run_as_in_plain_transformers(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig

    save(tmp_path, TorchAoConfig(quantization.Int8WeightOnlyConfig()), dtype)
    engine = assert_like_plain(tmp_path, dtype, "Linear")
    assert "Int8" in type(engine.model.model.layers[0].mlp.down_proj.weight).__name__


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_bits_of_bitsandbytes_run_as_in_plain_transformers(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    save(
        tmp_path,
        BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        ),
        dtype,
    )
    assert_like_plain(tmp_path, dtype, "Linear4bit")


def test_eight_bits_of_bitsandbytes_are_refused_while_rows_are_not_apart(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    save(tmp_path, BitsAndBytesConfig(load_in_8bit=True))
    with pytest.raises(
        UnsupportedModel, match="Linear8bitLt, gives something else for a row beside other rows"
    ):
        Engine.from_pretrained(tmp_path, device="cpu", dtype="float32")
    save(tmp_path, BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0))
    assert_like_plain(tmp_path, torch.float32, "Linear8bitLt")


def test_weights_of_compressed_tensors_run_as_in_plain_transformers(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    save(tmp_path)
    packed: dict[str, Tensor] = {}
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        if "_proj" in name:
            packed[f"{name}_scale"] = weight.abs().amax(1, keepdim=True) / 127
            packed[f"{name}_packed"] = pack_to_int32(
                (weight / packed[f"{name}_scale"]).round().to(torch.int8), 8
            )
            packed[f"{name}_shape"] = torch.tensor(weight.shape)
        else:
            packed[name] = weight
    save_file(packed, tmp_path / "model.safetensors", {"format": "pt"})
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    say(
        tmp_path,
        quant_method="compressed-tensors",
        format="pack-quantized",
        quantization_status="compressed",
        ignore=["lm_head"],
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights}},
    )
    engine = assert_like_plain(tmp_path, torch.float32, "Linear")
    assert "forward" in vars(engine.model.model.layers[0].mlp.down_proj)
    # whose plain layers are packed
    engine = Engine.from_pretrained(tmp_path, device="cpu", dtype="bfloat16")
    assert "forward" in vars(engine.model.model.layers[0].mlp.down_proj)


def test_fp8_weights_run_as_in_plain_transformers(tmp_path: Path) -> None:
    """With a factor for each block of a matrix, as DeepSeek and Qwen publish them. A CPU computes
    on them unpacked."""
    save(tmp_path)
    packed: dict[str, Tensor] = {}
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        packed[name] = weight
        if "_proj" in name:
            rows, columns = weight.shape
            blocks = weight.view(rows // 64, 64, columns // 64, 64)
            factor = blocks.abs().amax((1, 3)) / 448
            packed[name] = (
                (blocks / factor[:, None, :, None]).view(rows, columns).to(torch.float8_e4m3fn)
            )
            packed[f"{name}_scale_inv"] = factor
    save_file(packed, tmp_path / "model.safetensors", {"format": "pt"})
    say(
        tmp_path,
        quant_method="fp8",
        weight_block_size=[64, 64],
        activation_scheme="dynamic",
        fmt="e4m3",
    )
    assert_like_plain(tmp_path, torch.float32, "Linear")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quant_method": "gptq", "bits": 4}, "'gptq', which does not run here: .*(optimum|GPU)"),
        (
            {"quant_method": "awq", "bits": 4},
            "'awq', which does not run here: .*pip install gptqmodel",
        ),
        (
            {"quant_method": "auto-round", "bits": 4},
            "'auto-round', which does not run here: .*auto-round",
        ),
        (
            {"quant_method": "smaller", "bits": 4},
            "'smaller', which the installed transformers does not know",
        ),
    ],
)
def test_what_does_not_run_here_is_named_before_weights_are_read(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    save(tmp_path)
    say(tmp_path, **settings)
    (tmp_path / "model.safetensors").write_text("not weights")
    with pytest.raises(
        UnsupportedModel,
        match=f"(?s)cannot load the model .*: its weights are quantized by {reason}.*gguf",
    ):
        Engine.from_pretrained(tmp_path, device="cpu")


def test_placements_and_plans_refuse_quantized_weights(tmp_path: Path) -> None:
    save(tmp_path)
    say(tmp_path, quant_method="fp8", weight_block_size=[64, 64])
    with pytest.raises(UnsupportedModel, match="quantized by 'fp8'; leave placement out"):
        Engine.from_pretrained(tmp_path, device="cpu", placement=Streamed())
    with pytest.raises(
        UnsupportedModel, match="quantized by 'fp8', and memory=auto plans for plain ones"
    ):
        Engine.from_pretrained(tmp_path, device="cpu", memory="auto")


class Rounded(nn.Linear):
    """Rounds its input to 8 bits, by the largest number of each row or of all."""

    by_row = True

    def forward(self, x: Tensor) -> Tensor:
        step = x.abs().amax(-1, keepdim=True) / 127 if self.by_row else x.abs().max() / 127
        return super().forward((x / step).round() * step)


class Weight(nn.Parameter):
    """Says that it is one of torchao's."""

    __module__ = "torchao.stand_in"


def with_rounding(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """Its first layer is one of Rounded's kind, and it says that it is quantized."""
    model = build()
    old = model.model.layers[1].mlp.up_proj
    rounded = Rounded(old.in_features, old.out_features, bias=False)
    rounded.weight = Weight(rounded.weight.detach().to(dtype))
    model.to(dtype).model.layers[1].mlp.up_proj = rounded
    model.is_quantized = True
    return model


@pytest.mark.parametrize("by_row", [True, False])
def test_a_layer_that_looks_at_all_rows_is_refused(
    monkeypatch: pytest.MonkeyPatch, by_row: bool
) -> None:
    monkeypatch.setattr(Rounded, "by_row", by_row)
    model = with_rounding(torch.bfloat16)
    model.is_quantized = False
    check_rows_apart(model)  # nobody says that it is quantized
    model.is_quantized = True
    if by_row:
        check_rows_apart(model)
    else:
        with pytest.raises(
            UnsupportedModel, match=r"model.layers.1.mlp.up_proj, a Rounded, gives something else"
        ):
            Engine(model, None)


def test_a_layer_that_rounds_its_inputs_is_refused_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rounded, "by_row", True)
    reason = r"model.layers.1.mlp.up_proj, a Rounded, rounds its inputs to a few bits.*bfloat16"
    with pytest.raises(UnsupportedModel, match=reason):
        Engine(with_rounding(), None)
    check_rows_apart(with_rounding(torch.bfloat16))
    monkeypatch.setattr(Rounded, "forward", nn.Linear.forward)
    check_rows_apart(with_rounding())


@pytest.mark.parametrize("bits", [torch.int8, torch.int4])
def test_activations_that_torchao_quantizes_as_they_come_are_refused_in_float32(bits: Any) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    configs = [quantization.Int8DynamicActivationIntxWeightConfig(weight_dtype=bits)]
    configs += [quantization.Int8DynamicActivationInt8WeightConfig()] if bits == torch.int8 else []
    for config in configs:
        model = build()
        quantization.quantize_(model.model, config)
        model.is_quantized = True
        with pytest.raises(UnsupportedModel, match="rounds its inputs to a few bits"):
            Engine(model, None)
