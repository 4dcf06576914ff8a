"""Integer weights in groups, read from folders in the layouts of GPTQ, AWQ, compressed-tensors and
torchao, give what plain transformers gives on the weights that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers.exactness import assert_like_plain, grow
from tests.ttc.model.test_loading import save_tokenizer
from ttc import Engine, InvalidInput, UnsupportedModel
from ttc.model.loading import load
from ttc.model.stored_layers import StoredLinear

GROUP = 32
CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
Parts = dict[str, Tensor]


def in_words(codes: Tensor, bits: int) -> Tensor:
    """Words of the last axis, the lowest bits first, as every one of these formats has them."""
    count = 32 // bits
    parts = codes.long().unflatten(-1, (-1, count)) << bits * torch.arange(count)
    words = parts.sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def gptq(codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_of: Tensor) -> Parts:
    return {
        "qweight": in_words(codes, bits).T.contiguous(),
        "qzeros": in_words(zeros.T - 1, bits),
        "scales": scales.T.contiguous(),
        "g_idx": group_of.int(),
    }


def awq(codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_of: Tensor) -> Parts:
    def in_order(outputs: Tensor) -> Tensor:
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        return in_words(outputs.unflatten(-1, (-1, 8))[..., order].flatten(-2), bits)

    return {
        "qweight": in_order(codes.T),
        "qzeros": in_order(zeros.T),
        "scales": scales.T.contiguous(),
    }


def packed(codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_of: Tensor) -> Parts:
    return {
        "weight_packed": in_words(codes, bits),
        "weight_scale": scales,
        "weight_zero_point": in_words(zeros.T, bits).T.contiguous(),
        "weight_shape": torch.tensor(codes.shape),
    }


def symmetric(codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_of: Tensor) -> Parts:
    parts = packed(codes, scales, zeros, bits, group_of)
    del parts["weight_zero_point"]
    return parts


def torchao(codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_of: Tensor) -> Parts:
    middle = 1 << bits - 1
    return {
        "_weight_qdata": (codes - middle).to(torch.int8),
        "_weight_scale": scales,
        "_weight_zero_point": (zeros - middle).to(torch.int8),
    }


def note(bits: int) -> str:
    """What torchao writes into a file's head for each weight."""
    data = {
        "target_dtype": {"_type": "torch.dtype", "_data": f"int{bits}"},
        "block_size": [1, GROUP],
        "activation_quantization": None,
    }
    return json.dumps({"_type": "IntxUnpackedToInt8Tensor", "_data": data})


def scheme(bits: int, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights} | more},
        "ignore": ["lm_head"],
    }


GPTQ = {"quant_method": "gptq", "group_size": GROUP, "desc_act": False, "bits": 4}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
LAYOUTS: dict[str, tuple[Callable[..., Parts], dict[str, Any], int]] = {
    "gptq 4": (gptq, GPTQ, 4),
    "gptq 8": (gptq, GPTQ | {"bits": 8}, 8),
    "act-order": (gptq, GPTQ | {"desc_act": True}, 4),
    "awq": (awq, AWQ, 4),
    "pack-quantized 4": (packed, scheme(4), 4),
    "pack-quantized 8": (packed, scheme(8), 8),
    "symmetric": (symmetric, scheme(4), 4),
    "torchao 4": (torchao, {"quant_method": "torchao"}, 4),
    "torchao 8": (torchao, {"quant_method": "torchao"}, 8),
}


def quantized(rows: int, width: int, layout: str) -> tuple[Parts, Tensor]:
    """A random weight as a layout stores it, and the numbers that it stands for."""
    store, settings, bits = LAYOUTS[layout]
    codes = torch.randint(0, 1 << bits, (rows, width))
    groups = width // GROUP
    scales = (0.01 + 0.02 * torch.rand(rows, groups)).half() * 2.0 ** (4 - bits)
    zeros = torch.randint(1, 1 << bits, (rows, groups))
    if store is symmetric:
        zeros[:] = 1 << bits - 1
    group_of = torch.arange(width) // GROUP
    if settings.get("desc_act"):
        group_of = group_of[torch.randperm(width)]
    numbers = scales.float()[:, group_of] * (codes - zeros[:, group_of])
    return store(codes, scales, zeros, bits, group_of), numbers


def write(folder: Path, layout: str, plain: Any = None) -> Any:
    """A folder with a random model in a layout, a Llama if none is given. Returns the model with
    the weights that it stands for."""
    store, settings, _ = LAYOUTS[layout]
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(**CONFIG)) if plain is None else plain
    tensors = dict(plain.state_dict())
    notes = {}
    for path, module in plain.named_modules():
        matrices = {}
        if type(module) is nn.Linear and path != "lm_head" and module.out_features > 1:
            matrices[path] = module.weight.data
            del tensors[f"{path}.weight"]
        if hasattr(module, "gate_up_proj"):
            matrices = matrices_of_experts(path, module)
            del tensors[f"{path}.gate_up_proj"], tensors[f"{path}.down_proj"]
        for name, weight in matrices.items():
            parts, numbers = quantized(*weight.shape, layout)
            tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
            weight.copy_(numbers)
            notes[f"{name}.weight"] = note(LAYOUTS[layout][2])
    if plain.config.model_type == "mixtral":
        tensors = {name_of_mixtral(name): tensor for name, tensor in tensors.items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", notes if store is torchao else None)
    config = plain.config.to_dict() | {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer(folder)
    return plain.eval()


def matrices_of_experts(path: str, experts: Any) -> Parts:
    """The weights of each expert, by what files call them; parts of the module's own."""
    weights = {}
    for number, (gate_up, down) in enumerate(
        zip(experts.gate_up_proj.data, experts.down_proj.data, strict=True)
    ):
        gate, up = gate_up.chunk(2)
        each = {"gate": gate, "up": up, "down": down}
        weights |= {f"{path}.{number}.{part}_proj": weight for part, weight in each.items()}
    return weights


def name_of_mixtral(name: str) -> str:
    """What files of Mixtral call a weight."""
    name = name.replace(".mlp.", ".block_sparse_moe.")
    for part, other in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
        name = name.replace(part, other)
    return name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tree_on_integer_weights_equals_plain_transformers(tmp_path: Path, layout: str) -> None:
    plain = write(tmp_path, layout)
    engine = Engine.from_pretrained(tmp_path, device="cpu", dtype="float32", quantized=True)
    engine.limits.eos_ids = frozenset()
    kept = [module for module in engine.model.modules() if isinstance(module, StoredLinear)]
    assert len(kept) == 14
    compiled = engine.runner.reason.startswith("compiled layers")
    assert compiled == (layout != "act-order")
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    with torch.no_grad():
        tokens = torch.arange(40)[None]
        found = load(tmp_path, device="cpu", dtype="bfloat16", quantized=True)[0](tokens).logits
        expected = plain(tokens).logits
    assert float((found - expected).abs().max()) < 0.1 * float(expected.abs().max())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "3 bits": (GPTQ | {"bits": 3}, "have 3 bits"),
    "dynamic": (GPTQ | {"dynamic": {"-:down": {}}}, "each in another way"),
    "gemv": (AWQ | {"version": "gemv"}, "version='gemv'"),
    "activations": (scheme(4, input_activations={"num_bits": 8}), "input_activations are quant"),
    "float": (scheme(4) | {"format": "float-quantized"}, "format='float-quantized'"),
    "another": ({"quant_method": "hqq", "bits": 4}, "weights of 'hqq' are not kept"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_read_is_named(tmp_path: Path, what: str) -> None:
    write(tmp_path, "gptq 4")
    settings, words = REFUSED[what]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": settings}))
    with pytest.raises(UnsupportedModel, match=words):
        load(tmp_path, device="cpu", quantized=True)


def test_missing_and_misshapen_weights_are_named(tmp_path: Path) -> None:
    write(tmp_path, "gptq 4")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    scales = "model.layers.1.mlp.up_proj.scales"
    save_file({name: x for name, x in tensors.items() if name != scales}, file)
    with pytest.raises(UnsupportedModel, match=f"lack the weight {scales}"):
        load(tmp_path, device="cpu", quantized=True)
    narrow = tensors["model.layers.0.mlp.up_proj.qweight"][:, :64].contiguous()
    save_file(tensors | {"model.layers.0.mlp.up_proj.qweight": narrow}, file)
    with pytest.raises(
        UnsupportedModel, match=r"up_proj is \(64, 64\) in the files and \(128, 64\)"
    ):
        load(tmp_path, device="cpu", quantized=True)


def test_tensors_of_torchao_that_are_not_read_are_named(tmp_path: Path) -> None:
    write(tmp_path, "torchao 4")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    names = [name.replace("._weight_qdata", ".weight") for name in tensors if "qdata" in name]
    for text, words in (
        (note(4).replace("IntxUnpackedToInt8Tensor", "Int4TilePackedTo4dTensor"), "Int4TilePacked"),
        (note(4).replace("null", '"int8"'), "activations of .* are quantized"),
        (note(3), "numbers of int3"),
    ):
        save_file(tensors, file, dict.fromkeys(names, text))
        with pytest.raises(UnsupportedModel, match=words):
            load(tmp_path, device="cpu", quantized=True)


def test_a_folder_whose_package_is_missing_names_the_way_without_it(tmp_path: Path) -> None:
    write(tmp_path, "gptq 4")
    with pytest.raises(UnsupportedModel, match=r"'gptq'.* as they are stored \(quantized=True"):
        load(tmp_path, device="cpu")


def test_a_plain_folder_is_neither(tmp_path: Path) -> None:
    write(tmp_path, "gptq 4")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match=r"a \.gguf file or of a quantized folder"):
        load(tmp_path, device="cpu", quantized=True)
