"""Loading folders of GPTQ, AWQ, compressed-tensors and torchao, whose weights are integers with a
scale for each group, and of gpt-oss in MXFP4, for a CPU and without these packages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ttc.errors import InvalidInput, UnsupportedModel
from ttc.model.grouped_weights import Grouped, awq, gptq, pack_quantized, row_bytes, signed_bytes
from ttc.model.mxfp4_loading import bytes_of_experts, mxfp4_experts_of, read_experts
from ttc.model.stored_experts import (
    Activated,
    StoredExperts,
    StoredMatrices,
    experts_of,
    matrix_shapes,
)
from ttc.model.stored_layers import StoredLinear

MARKS = {
    "gptq": "qweight",
    "awq": "qweight",
    "compressed-tensors": "weight_scale",
    "torchao": "_weight_qdata",
}
"""The methods, and for each the tensor that a layer has whose weights are integers."""
METHODS = (*MARKS, "mxfp4")
MIXTRAL_EXPERT = re.compile(r"(\.experts\.\d+)\.w([123])\.")
MIXTRAL_PARTS = {"1": "gate", "2": "down", "3": "up"}
"""How files of Mixtral name the matrices of an expert."""
TORCHAO = {"Int8Tensor": "act_quant_kwargs", "IntxUnpackedToInt8Tensor": "activation_quantization"}
"""The tensors of torchao that are read, and what they say of quantized activations."""


def read_grouped(kind: Any, config: Any, dtype: torch.dtype, folder: Path) -> Any:
    """The model of a folder of one of `METHODS`. Its integer weights stay integers, layer by layer
    in the kernel's form; all else is read as `dtype`.

    kind: the class that makes it from a configuration. Raises UnsupportedModel for what is not
    read, and for weights that are missing or of other shapes.
    """
    from transformers import GenerationConfig

    layout = Layout.of(config.quantization_config)
    files = _Files(folder)
    model = _empty(kind, config, dtype)
    for path, module in _integers(model, layout, files).items():
        _replace(model, path, _linear(path, module, layout, files, dtype))
    if layout.method == "mxfp4":
        for path, module in mxfp4_experts_of(model).items():
            _replace(model, path, read_experts(path, module, dtype, files.read))
    else:
        for path, module in experts_of(model).items():
            _replace(model, path, _experts(path, module, layout, files))
    for name, weight in list(model.named_parameters()):
        if weight.is_meta and (name in files or not _is_tied(model, name)):
            path, _, last = name.rpartition(".")
            numbers = files.read(name, tuple(weight.shape)).to(dtype)
            model.get_submodule(path).register_parameter(last, nn.Parameter(numbers, False))
    model.tie_weights()
    if (folder / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def bytes_in_folder(kind: Any, config: Any, dtype: torch.dtype, folder: Path) -> dict[str, int]:
    """The bytes that each integer weight takes in the kernel's form, by its name in transformers;
    by the files' heads alone. See `read_grouped`."""
    layout = Layout.of(config.quantization_config)
    files = _Files(folder)
    model = _empty(kind, config, dtype)
    if layout.method == "mxfp4":
        modules = mxfp4_experts_of(model).items()
        return {name: size for each in modules for name, size in bytes_of_experts(*each).items()}

    def nbytes(path: str, rows: int, width: int) -> int:
        return rows * row_bytes(width=width, **_bits_and_groups(path, layout, files))

    sizes = {
        f"{path}.weight": nbytes(path, module.out_features, module.in_features)
        for path, module in _integers(model, layout, files).items()
    }
    for path, module in experts_of(model).items():
        gate, up, down = (
            count * nbytes(_expert(path, 0, part), rows, width)
            for part, (count, rows, width) in matrix_shapes(module).items()
        )
        sizes |= {f"{path}.gate_up_proj": gate + up, f"{path}.down_proj": down}
    return sizes


def _empty(kind: Any, config: Any, dtype: torch.dtype) -> Any:
    """The model without weights."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        return kind.from_config(config, dtype=dtype)


def _integers(model: Any, layout: Layout, files: _Files) -> dict[str, nn.Linear]:
    """The linear layers whose weights are integers, by name."""
    mark = MARKS.get(layout.method)  # linear layers beside MXFP4 are plain
    return {
        path: module
        for path, module in model.named_modules()
        if type(module) is nn.Linear and f"{path}.{mark}" in files
    }


def _replace(model: Any, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def check_layout(config: Any) -> None:
    settings = getattr(config, "quantization_config", None)
    if not settings:
        raise InvalidInput(
            "quantized=True keeps the weights of a .gguf file or of a quantized folder as they are "
            "stored, and this is neither; name such a file, or leave quantized out"
        )
    Layout.of(settings)


def _is_tied(model: Any, name: str) -> bool:
    tied = model.config.get_text_config().tie_word_embeddings
    head = model.get_output_embeddings()
    return bool(tied) and head is not None and model.get_submodule(name.rpartition(".")[0]) is head


class Layout:
    """What a configuration says of its integers. plus: what is added to GPTQ's zeros."""

    def __init__(self, method: str, bits: int, plus: int = 0):
        self.method = method
        self.bits = bits
        self.plus = plus

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Layout:
        """Raises UnsupportedModel that names what is not read."""
        method = str(settings.get("quant_method"))
        if method not in METHODS:
            raise UnsupportedModel(
                f"weights of {method!r} are not kept as they are stored, those of a .gguf file and "
                f"of {', '.join(METHODS)} are; leave quantized out"
            )
        if method == "torchao":  # a file says it of each tensor
            return Layout(method, 8)
        if method == "mxfp4":
            return Layout(method, 4)
        layouts = {"gptq": _gptq_layout, "awq": _awq_layout, "compressed-tensors": _compressed}
        layout = layouts[method](settings)
        if layout.bits not in (4, 8):
            raise UnsupportedModel(
                f"its weights of {method} have {layout.bits} bits, and those of 4 and 8 are kept "
                "as they are stored"
            )
        return layout


def _gptq_layout(settings: Mapping[str, Any]) -> Layout:
    stored = settings.get("checkpoint_format") or "gptq"
    _expect("checkpoint_format", stored, "gptq", "gptq_v2")
    if settings.get("dynamic"):
        raise UnsupportedModel("its layers are quantized each in another way (dynamic)")
    return Layout("gptq", settings["bits"], plus=int(stored == "gptq"))


def _awq_layout(settings: Mapping[str, Any]) -> Layout:
    _expect("version", str(settings.get("version", "gemm")).lower(), "gemm")
    _expect("bits", settings.get("bits", settings.get("w_bit")), 4)
    return Layout("awq", 4)


def _compressed(settings: Mapping[str, Any]) -> Layout:
    groups = list((settings.get("config_groups") or {}).values())
    if len(groups) != 1:
        raise UnsupportedModel(f"its layers have {len(groups)} schemes of quantization, not one")
    for part in ("input_activations", "output_activations"):
        if groups[0].get(part):
            raise UnsupportedModel(f"its {part} are quantized, and rounding them depends on them")
    stored = groups[0].get("format") or settings.get("format")
    _expect("format", stored, "pack-quantized", "int-quantized")
    weights = groups[0]["weights"]
    _expect("type", weights.get("type", "int"), "int")
    _expect("strategy", weights.get("strategy"), "group", "channel")
    return Layout("compressed-tensors", weights["num_bits"])


def _expect(name: str, value: Any, *known: Any) -> None:
    if value not in known:
        raise UnsupportedModel(
            f"its quantization_config has {name}={value!r}; weights that stay as they are stored "
            f"are read with {' or '.join(map(repr, known))}"
        )


def _linear(
    path: str, module: nn.Linear, layout: Layout, files: _Files, dtype: torch.dtype
) -> StoredLinear:
    shape = module.out_features, module.in_features
    packed, stored, order = _packed(path, shape, layout, files)
    bias = files.maybe(f"{path}.bias")
    if bias is None and module.bias is not None:
        raise UnsupportedModel(f"its files lack the weight {path}.bias")
    weight = None if bias is None else nn.Parameter(bias.to(dtype), requires_grad=False)
    return StoredLinear(packed, stored, module.in_features, weight, order)


def _experts(path: str, module: Any, layout: Layout, files: _Files) -> StoredExperts:
    first = f"{_expert(path, 0, 'gate')}.{MARKS[layout.method]}"
    if first not in files:
        raise UnsupportedModel(
            f"the experts of {path} are not integers in its files, which lack {first}; leave "
            "quantized out"
        )
    matrices = {
        part: _matrices(path, part, shape, layout, files)
        for part, shape in matrix_shapes(module).items()
    }
    return StoredExperts(**matrices, gating=Activated(module.act_fn))


def _matrices(
    path: str, part: str, shape: tuple[int, int, int], layout: Layout, files: _Files
) -> StoredMatrices:
    """One matrix of each expert, side by side."""
    count, rows, width = shape
    together = torch.empty(0)
    kinds = set[int]()
    orders = []
    for expert in range(count):
        name = _expert(path, expert, part)
        bias = files.maybe(f"{name}.bias")
        if bias is not None and bias.any():
            raise UnsupportedModel(f"{name} has a bias, and {path} adds none")
        packed, stored, order = _packed(name, (rows, width), layout, files)
        if not expert:
            together = packed.new_empty(count, *packed.shape)
        kinds.add(stored)
        if len(kinds) > 1:
            raise UnsupportedModel(f"the groups of {name} are not as large as those before it")
        together[expert] = packed
        orders.append(torch.arange(width) if order is None else order)
    order = torch.stack(orders)
    in_order = bool((order == torch.arange(width)).all())
    return StoredMatrices(together, kinds.pop(), width, None if in_order else order)


def _expert(path: str, number: int, part: str) -> str:
    """What the files call a matrix of one expert."""
    return f"{path}.{number}.{part}_proj"


def _packed(
    path: str, expected: tuple[int, int], layout: Layout, files: _Files
) -> tuple[Tensor, int, Tensor | None]:
    """A weight's rows as bytes, the kernel's number of their kind, and the order of inputs where
    the weight has them in another one."""
    grouped = _grouped(path, layout, files)
    if tuple(grouped.codes.shape) != expected:
        raise UnsupportedModel(
            f"{path} is {tuple(grouped.codes.shape)} in the files and {expected} by its "
            "configuration"
        )
    groups = files.maybe(f"{path}.{'g_idx' if layout.method == 'gptq' else 'weight_g_idx'}")
    order = None if groups is None else _order(groups, grouped.scales.shape[1], path)
    if order is not None:
        grouped = replace(grouped, codes=grouped.codes[:, order].contiguous())
    return *grouped.packed(), order


def _grouped(path: str, layout: Layout, files: _Files) -> Grouped:
    def read(name: str) -> Tensor:
        return files.read(f"{path}.{name}")

    def maybe(name: str) -> Tensor | None:
        return files.maybe(f"{path}.{name}")

    if layout.method == "gptq":
        words, zeros, scales = map(read, ("qweight", "qzeros", "scales"))
        return gptq(words, zeros, scales, layout.bits, layout.plus)
    if layout.method == "awq":
        return awq(read("qweight"), read("qzeros"), read("scales"))
    if layout.method == "torchao":
        bits = _torchao_bits(path, files.about(f"{path}.weight"))
        zero = maybe("_weight_zero_point")
        return signed_bytes(read("_weight_qdata"), read("_weight_scale"), zero, bits)
    scale, zero = read("weight_scale"), maybe("weight_zero_point")
    if f"{path}.weight_packed" not in files:
        return signed_bytes(read("weight"), scale, zero, layout.bits)
    shape = read("weight_shape").tolist()
    return pack_quantized(read("weight_packed"), scale, zero, shape, layout.bits)


def _bits_and_groups(path: str, layout: Layout, files: _Files) -> dict[str, int]:
    """The bits of a weight's codes, and the groups of a row."""
    if layout.method in ("gptq", "awq"):
        return {"bits": layout.bits, "groups": files.shape(f"{path}.scales")[0]}
    if layout.method == "torchao":
        bits = _torchao_bits(path, files.about(f"{path}.weight"))
        return {"bits": bits, "groups": files.shape(f"{path}._weight_scale")[1]}
    return {"bits": layout.bits, "groups": files.shape(f"{path}.weight_scale")[1]}


def _torchao_bits(path: str, about: Mapping[str, Any]) -> int:
    """The bits of a weight's codes, by what torchao's file says of it. Raises UnsupportedModel."""
    kind, data = about.get("_type", "unknown tensor"), about.get("_data", {})
    if kind not in TORCHAO:
        raise UnsupportedModel(
            f"{path} is torchao's {kind}, and what is kept as it is stored is "
            f"{' or '.join(TORCHAO)}"
        )
    if data.get(TORCHAO[kind]):
        raise UnsupportedModel(
            f"the activations of {path} are quantized, and rounding them depends on them"
        )
    target = data.get("target_dtype", {}).get("_data", "int8")
    if target not in ("int4", "int8"):
        raise UnsupportedModel(f"{path} has numbers of {target}; those of int4 and int8 are read")
    return 4 if target == "int4" else 8


def _order(group_of: Tensor, groups: int, path: str) -> Tensor | None:
    """The inputs, those of a group in a row; None where they are so already."""
    if bool((group_of < 0).all()):
        return None
    counts = torch.bincount(group_of, minlength=groups)
    if len(counts) != groups or bool((counts != counts[0]).any()):
        raise UnsupportedModel(f"the groups of {path} differ in size")
    if bool((group_of.diff() >= 0).all()):
        return None
    return torch.argsort(group_of, stable=True)


def _name_today(name: str) -> str:
    """What transformers calls a weight now that files of Mixtral name in another way."""
    name = name.replace(".block_sparse_moe.", ".mlp.")
    return MIXTRAL_EXPERT.sub(lambda found: f"{found[1]}.{MIXTRAL_PARTS[found[2]]}_proj.", name)


class _Files:
    """The tensors of a folder's .safetensors files, by the names of today's modules."""

    def __init__(self, folder: Path):
        from safetensors import safe_open

        files = sorted(folder.glob("*.safetensors"))
        index = folder / "model.safetensors.index.json"
        if index.exists():
            named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            files = [folder / name for name in sorted(set(named))]
        if not files:
            raise UnsupportedModel(f"{folder.name} has no .safetensors files")
        opened = [safe_open(file, "pt") for file in files]
        self.homes = {
            _name_today(name): (file, name)
            for file in opened
            for name in file.keys()  # noqa: SIM118
        }
        self.notes = {
            _name_today(name): text
            for file in opened
            for name, text in (file.metadata() or {}).items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self.homes

    def about(self, name: str) -> dict[str, Any]:
        try:
            parsed = json.loads(self.notes.get(name, "{}"))
        except ValueError:
            parsed = {}
        return parsed if isinstance(parsed, dict) else {}

    def shape(self, name: str) -> list[int]:
        """A tensor's shape, by the file's head."""
        if name not in self.homes:
            raise UnsupportedModel(f"its files lack the weight {name}")
        file, stored = self.homes[name]
        shape: list[int] = file.get_slice(stored).get_shape()
        return shape

    def maybe(self, name: str) -> Tensor | None:
        return self.read(name) if name in self else None

    def read(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        if name not in self.homes:
            raise UnsupportedModel(f"its files lack the weight {name}")
        file, stored = self.homes[name]
        tensor: Tensor = file.get_tensor(stored)
        if shape is not None and tuple(tensor.shape) != shape:
            raise UnsupportedModel(
                f"{name} is {tuple(tensor.shape)} in the files and {shape} by its configuration"
            )
        return tensor
