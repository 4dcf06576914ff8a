"""Experts whose weights stay as they are stored give what those of transformers give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GptOssConfig, Qwen3MoeConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from experiments.standins.random_gguf import MIXED, Shape, random_weight, write_llama
from tests.helpers.exactness import assert_like_plain, grow
from tests.ttc.model.loading.test_loading import save_tokenizer
from ttc import BeamGroups, Engine, Paged, Split, Streamed, UnsupportedModel
from ttc.model.loading.load import configuration, load
from ttc.model.loading.partition import partition
from ttc.model.stored import stored_bytes
from ttc.stored.experts import Activated, StoredExperts, StoredMatrices

EXPERTS, HIDDEN, INNER = 6, 256, 512
BUDGET = 200_000 / 2**30


def write(
    file: Path, architecture: str, kind: Kind | str, layers: int = 2, scale: float = 0.06
) -> None:
    write_llama(file, kind, Shape(layers=layers, inner=256, architecture=architecture), scale)


def plain_of(file: Path) -> Any:
    """transformers' model of the same file, whose widths of experts it does not read."""
    config, _, _ = configuration(file, device="cpu", dtype="float32", quantized=True)
    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, config=config
    ).eval()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("architecture", "kind", "options"),
    [
        ("qwen3moe", Kind.Q4_K, {}),
        ("qwen3moe", Kind.Q8_0, {"memory": Paged(budget_gib=BUDGET, block_tokens=8)}),
        ("qwen2moe", Kind.Q4_1, {"memory": BeamGroups(budget_gib=BUDGET, block_tokens=8)}),
        ("qwen3moe", Kind.Q4_1, {"placement": Split(k=1)}),
        ("qwen2moe", Kind.Q6_K, {"placement": Streamed()}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_tree_on_a_file_equals_plain_transformers(
    tmp_path: Path, architecture: str, kind: Kind, options: dict[str, Any]
) -> None:
    file = tmp_path / "model.gguf"
    write(file, architecture, kind)
    engine = Engine.from_pretrained(file, device="cpu", dtype="float32", quantized=True, **options)
    engine.limits.eos_ids = frozenset()
    plain = plain_of(file)
    for branch in grow(engine):
        assert_like_plain(plain, branch)


def test_a_mixed_file_in_bfloat16_is_like_plain_transformers(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    # small numbers: with larger ones rounding sends some rows to other experts
    write(file, "qwen3moe", MIXED, scale=0.03)
    model, _ = load(file, device="cpu", dtype="bfloat16", quantized=True)
    tokens = torch.arange(40)[None]
    with torch.no_grad():
        found = model(tokens).logits
        expected = plain_of(file)(tokens).logits
    assert float((found - expected).abs().max()) < 0.1 * float(expected.abs().max())


def test_the_weights_of_experts_are_the_file_itself(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write(file, "qwen2moe", Kind.Q4_1)
    how: dict[str, Any] = {"device": "cpu", "dtype": "float32", "quantized": True}
    model, _ = load(file, **how)
    matrices = [module for module in model.modules() if isinstance(module, StoredMatrices)]
    assert len(matrices) == 2 * 3
    one = {matrix.packed.untyped_storage().data_ptr() for matrix in matrices}
    assert one == {model.lm_head.packed.untyped_storage().data_ptr()}
    assert not any(weight.is_meta for weight in model.parameters())
    sizes = configuration(file, **how)[2]
    assert sizes == stored_bytes(model)
    blocks = 8 * 256 * 256 // 32
    assert sizes["model.layers.1.mlp.experts.gate_up_proj"] == 2 * 20 * blocks
    assert sizes["model.layers.1.mlp.experts.down_proj"] == 20 * blocks
    assert type(model.model.layers[0].mlp.shared_expert_gate) is torch.nn.Linear


def test_auto_plans_with_the_stored_bytes_of_experts(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write(file, "qwen3moe", Kind.Q4_K)
    config, dtype, sizes = configuration(file, device="cpu", dtype="float32", quantized=True)
    block = partition(config, dtype, stored=sizes).units[1]
    assert (block.experts, block.routed) == (8, 2)
    assert block.expert_bytes == 3 * 8 * 256 * 144  # a row of 256 numbers takes 144 bytes


def test_a_tensor_of_experts_that_is_missing_or_misshapen_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    write(file, "qwen3moe", Kind.Q8_0)
    whole = file.read_bytes()
    name = b"blk.1.ffn_up_exps.weight"
    file.write_bytes(whole.replace(name, b"blk.1.ffn_UP_exps.weight"))
    with pytest.raises(
        UnsupportedModel, match=r"no place for, among them blk\.1\.ffn_UP_exps\.weight"
    ):
        load(file, device="cpu", quantized=True)
    place = whole.index(name) + len(name) + 4  # after the number of axes
    experts = place + 2 * 8
    assert int.from_bytes(whole[experts : experts + 8], "little") == 8
    file.write_bytes(whole[:experts] + (4).to_bytes(8, "little") + whole[experts + 8 :])
    with pytest.raises(
        UnsupportedModel, match=r"blk\.1\.ffn_up_exps\.weight is \(4, 256, 256\) in the file"
    ):
        load(file, device="cpu", quantized=True)


# ---------------------------------------------------------------- gpt-oss


CONFIG = GptOssConfig(
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=128,
    max_position_embeddings=256,
    num_local_experts=4,
    num_experts_per_tok=2,
    pad_token_id=None,
    eos_token_id=None,
)


def write_gpt_oss(folder: Path) -> Any:
    """A random gpt-oss as it ships. Returns the model with the weights that it stands for."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(CONFIG)
    tensors = dict(plain.state_dict())
    for name, weight in plain.named_parameters():
        if name.endswith((".gate_up_proj", ".down_proj")):
            count, width, rows = weight.shape
            blocks = torch.randint(0, 256, (count, rows, width // 32, 16), dtype=torch.uint8)
            scales = torch.randint(120, 124, (count, rows, width // 32), dtype=torch.uint8)
            del tensors[name]
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            weight.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        if name.endswith("proj_bias"):
            weight.data.normal_()
    save_file(tensors, folder / "model.safetensors")
    settings = {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(plain.config.to_dict() | settings))
    save_tokenizer(folder)
    return plain.eval()


def test_a_tree_on_gpt_oss_as_it_ships_equals_plain_transformers(tmp_path: Path) -> None:
    plain = write_gpt_oss(tmp_path)
    how: dict[str, Any] = {"device": "cpu", "dtype": "float32", "quantized": True}
    engine = Engine.from_pretrained(
        tmp_path, memory=Paged(budget_gib=BUDGET, block_tokens=8), **how
    )
    engine.limits.eos_ids = frozenset()
    assert configuration(tmp_path, **how)[2] == stored_bytes(engine.model)
    for branch in grow(engine):
        assert_like_plain(plain, branch)


def test_a_missing_or_misshapen_weight_of_gpt_oss_is_named(tmp_path: Path) -> None:
    write_gpt_oss(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.experts.down_proj_scales"
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, file)
    with pytest.raises(UnsupportedModel, match=f"lack the weight {name}"):
        load(tmp_path, device="cpu", quantized=True)
    save_file(tensors | {name: tensors[name][:, :32].contiguous()}, file)
    with pytest.raises(UnsupportedModel, match=rf"{name} is \(4, 32, 2\) in the files"):
        load(tmp_path, device="cpu", quantized=True)


# ---------------------------------------------------------------- the module


def both(kind: Kind, dtype: torch.dtype) -> tuple[StoredExperts, Qwen3MoeExperts]:
    """Random experts, and transformers' with the numbers that they stand for."""
    config = Qwen3MoeConfig(
        num_experts=EXPERTS, hidden_size=HIDDEN, moe_intermediate_size=INNER, hidden_act="silu"
    )
    config._experts_implementation = "eager"
    plain = Qwen3MoeExperts(config)
    shapes = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
    matrices, numbers = {}, {}
    for seed, (part, (rows, width)) in enumerate(shapes.items()):
        packed = random_weight(kind, EXPERTS * rows, width, 0.05, seed)
        matrices[part] = StoredMatrices(
            torch.from_numpy(packed).view(EXPERTS, rows, -1), int(kind), width
        )
        weight = torch.from_numpy(gguf.dequantize(packed, kind)).view(EXPERTS, rows, width)
        numbers[part] = weight.to(dtype)
    plain.gate_up_proj.data = torch.cat([numbers["gate"], numbers["up"]], 1)
    plain.down_proj.data = numbers["down"]
    return StoredExperts(**matrices, gating=Activated(plain.act_fn)), plain


def routed(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, the two experts that each goes to, and their weights."""
    random = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, HIDDEN, generator=random).to(dtype)
    scores = torch.randn(rows, EXPERTS - 1, generator=random).softmax(-1)  # one is never hit
    weights, experts = scores.topk(2)
    return x, experts, weights.to(dtype)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_experts_give_what_those_of_transformers_give(rows: int) -> None:
    stored, plain = both(Kind.Q4_K, torch.float32)
    inputs = routed(rows, torch.float32)
    expected = plain(*inputs)
    found = stored(*inputs)
    assert float((found - expected).abs().max()) < 1e-5 * float(expected.abs().max())
    # in bfloat16 weights, results of products and sums are rounded, by 2^-8 at most each
    inputs = routed(rows, torch.bfloat16)
    exact = plain(*(part.float() if part.is_floating_point() else part for part in inputs))
    rounded = stored(*inputs)
    assert rounded.dtype == torch.bfloat16
    assert float((rounded - exact).abs().max()) < 6 * 2**-8 * float(exact.abs().max())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype) -> None:
    stored, _ = both(Kind.Q4_K, torch.float32)
    x, experts, weights = routed(70, dtype)
    together = stored(x, experts, weights)
    for part in (slice(0, 1), slice(7, 9), slice(3, 40)):
        assert torch.equal(stored(x[part], experts[part], weights[part]), together[part])


def test_activations_in_8_bits_reach_experts(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write(file, "qwen3moe", Kind.Q4_K, layers=1)

    def engine_of(int8: bool) -> Engine:
        return Engine.from_pretrained(
            file, device="cpu", dtype="float32", quantized=True, int8_activations=int8
        )

    engine = engine_of(int8=True)
    experts = [module for module in engine.model.modules() if isinstance(module, StoredMatrices)]
    inputs = routed(5, torch.float32)
    with torch.no_grad():
        layer = engine.model.model.layers[0].mlp.experts
        rounded = layer(*inputs)
        for matrices in experts:
            assert matrices.rounding is not None
            matrices.rounding = None
        exact = layer(*inputs)
    error = float((rounded - exact).abs().max())
    assert 0 < error < 0.03 * float(exact.abs().max())


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "torchao"])
def test_other_folders_cannot_be_kept_as_they_are_stored(tmp_path: Path, method: str) -> None:
    write_gpt_oss(tmp_path)
    file = tmp_path / "config.json"
    settings = {"quantization_config": {"quant_method": method, "bits": 4}}
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(UnsupportedModel, match=f"weights of '{method}' are not kept.*leave quant"):
        load(tmp_path, device="cpu", quantized=True)
