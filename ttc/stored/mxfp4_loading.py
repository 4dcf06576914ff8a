"""Reading a folder of gpt-oss whose experts stay in MXFP4 as they ship (OCP Microscaling Formats):
numbers of 4 bits, and a power of two for each 32 of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ttc.errors import InvalidInput, UnsupportedModel
from ttc.stored.experts import Clamped, StoredExperts, StoredMatrices

METHOD = "mxfp4"
"""What a configuration calls it."""
MXFP4 = 39
"""The kernel's number of this kind, which is ggml's."""
BLOCK, BLOCK_BYTES = 32, 17
"""Numbers of a block, and its bytes in the kernel's form."""
HALF = BLOCK // 2
"""Numbers that lie in the lower halves of a block's bytes; as many more are in their upper
halves."""


def check_method(config: Any) -> None:
    """Raises InvalidInput for a folder of plain weights, and UnsupportedModel for other methods."""
    settings = getattr(config, "quantization_config", None)
    if not settings:
        raise InvalidInput(
            "quantized=True keeps the weights of a .gguf file, or gpt-oss's experts in MXFP4, as "
            "they are stored, and this is neither; name such a file, or leave quantized out"
        )
    method = settings.get("quant_method")
    if method != METHOD:
        raise UnsupportedModel(
            f"weights of {method!r} are not kept as they are stored, those of a .gguf file and "
            f"gpt-oss's in {METHOD} are; leave quantized out to have transformers run them with "
            "their package, or load a .gguf file of the model"
        )


def read_folder(kind: Any, config: Any, dtype: torch.dtype, folder: Path) -> Any:
    """The model of a folder. Its experts stay as they are stored; all else is read as `dtype`.

    kind: the class that makes it from a configuration. Raises UnsupportedModel for weights that are
    missing or of other shapes.
    """
    from transformers import GenerationConfig

    files = _Files(folder)
    model = _empty(kind, config, dtype)
    for path, module in _gpt_oss_experts(model).items():
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, _experts(path, module, dtype, files))
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
    """The bytes that the experts' weights take in the kernel's form, by their names in
    transformers; without reading any. See `read_folder`."""
    return {
        f"{path}.{name}": getattr(module, name).numel() // BLOCK * BLOCK_BYTES
        for path, module in _gpt_oss_experts(_empty(kind, config, dtype)).items()
        for name in ("gate_up_proj", "down_proj")
    }


def _empty(kind: Any, config: Any, dtype: torch.dtype) -> Any:
    """The model without weights."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        return kind.from_config(config, dtype=dtype)


def _gpt_oss_experts(model: nn.Module) -> dict[str, Any]:
    """The modules of a model whose experts ship so, by name."""
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    return {path: module for path, module in model.named_modules() if type(module) is GptOssExperts}


def _is_tied(model: Any, name: str) -> bool:
    tied = model.config.get_text_config().tie_word_embeddings
    head = model.get_output_embeddings()
    return bool(tied) and head is not None and model.get_submodule(name.rpartition(".")[0]) is head


def _experts(path: str, module: Any, dtype: torch.dtype, files: _Files) -> StoredExperts:
    """The experts of a layer. Files have the rows of gate and up in turn."""

    def matrices(name: str, like: Tensor, rows: slice) -> StoredMatrices:
        count, width, height = like.shape
        groups = width // BLOCK
        blocks = files.read(f"{path}.{name}_blocks", (count, height, groups, HALF))[:, rows]
        scales = files.read(f"{path}.{name}_scales", (count, height, groups))[:, rows]
        bias = files.read(f"{path}.{name}_bias", (count, height))[:, rows].to(dtype).contiguous()
        packed = torch.stack([in_blocks(*its) for its in zip(blocks, scales, strict=True)])
        return StoredMatrices(packed, MXFP4, width, nn.Parameter(bias, requires_grad=False))

    return StoredExperts(
        gate=matrices("gate_up_proj", module.gate_up_proj, slice(0, None, 2)),
        up=matrices("gate_up_proj", module.gate_up_proj, slice(1, None, 2)),
        down=matrices("down_proj", module.down_proj, slice(None)),
        gating=Clamped(module.alpha, module.limit),
    )


def in_blocks(codes: Tensor, scales: Tensor) -> Tensor:
    """Rows as the kernel has them, (rows, bytes). codes: (rows, groups, 16), two numbers in a byte,
    the first in its lower half. scales: (rows, groups)."""
    numbers = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)  # (rows, groups, 32)
    lower, upper = numbers.split(HALF, -1)
    return torch.cat((scales[..., None], lower | upper << 4), -1).flatten(1)


class _Files:
    """The tensors of a folder's .safetensors files, by name."""

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
        self.homes = {name: file for file in opened for name in file.keys()}  # noqa: SIM118

    def __contains__(self, name: str) -> bool:
        return name in self.homes

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self.homes:
            raise UnsupportedModel(f"its files lack the weight {name}")
        tensor: Tensor = self.homes[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise UnsupportedModel(
                f"{name} is {tuple(tensor.shape)} in the files and {shape} by its configuration"
            )
        return tensor
