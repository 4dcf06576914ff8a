"""Loading a .gguf file whose weights stay as they are in the file, mapped into memory."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ttc.errors import UnsupportedModel, refuse
from ttc.model.loading.gguf_file import GgufFile, gguf_file, processor, weights
from ttc.model.loading.gguf_settings import check_tensors
from ttc.stored import kernel
from ttc.stored.experts import (
    PARTS,
    Activated,
    StoredExperts,
    StoredMatrices,
    experts_of,
    matrix_shapes,
)
from ttc.stored.kernel import KINDS
from ttc.stored.layers import StoredEmbedding, StoredLinear

WAY_OUT = "leave quantized out (model.quantized=false) to have its weights unpacked"
PLAIN = (
    *("llama", "mistral", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3"),
    *("starcoder2", "stablelm"),
)
"""Architectures whose weights a file holds row by row, in the order of transformers' or with the
rows of a head in turn."""

EXPERT_WIDTHS = {
    ".ffn_gate_exps.weight": "moe_intermediate_size",
    ".ffn_gate_shexp.weight": "shared_expert_intermediate_size",
}
"""Tensors whose rows a configuration counts, and what it calls that."""


def why_not() -> str:
    if platform.system() == "Windows":
        return "the kernels for stored weights are not built on Windows"
    if kernel.kernel() is None:
        return "there is no C++ compiler (g++, clang++, or what CXX names)"
    return ""


def read_stored(kind: Any, config: Any, dtype: torch.dtype, file: Path) -> Any:
    """The model of a .gguf file. Its linear layers, experts and embeddings multiply by the file's
    own bytes; the rest (norms, biases, routers) is read as `dtype`.

    kind: the class that makes it from a configuration. config: gets the widths of experts, which
    transformers does not read. Raises UnsupportedModel for a file that is
    cut off or lacks weights, and for types and architectures that are not read so.
    """
    filling = _opened(kind, config, dtype, file)
    filling.run()
    return filling.model


def bytes_in_file(kind: Any, config: Any, dtype: torch.dtype, file: Path) -> dict[str, int]:
    """The bytes of each weight that stays as the file stores it, by its name in transformers; by
    the file's head alone. See `read_stored`."""
    return _opened(kind, config, dtype, file).stored_bytes()


def _opened(kind: Any, config: Any, dtype: torch.dtype, file: Path) -> _Filling:
    from accelerate import init_empty_weights

    head = gguf_file(file)
    if head.architecture not in PLAIN:
        raise UnsupportedModel(
            f"weights of the architecture {head.architecture!r} are not kept as {file.name} stores "
            f"them, those of {', '.join(PLAIN)} are; {WAY_OUT}"
        )
    _set_expert_widths(config, head.tensors.values())
    with init_empty_weights(include_buffers=False):
        model = kind.from_config(config, dtype=dtype)
    check_tensors(model, head)
    return _Filling(model, file, head, dtype)


def _set_expert_widths(config: Any, tensors: Iterable[Any]) -> None:
    for tensor in tensors:
        for part, setting in EXPERT_WIDTHS.items():
            if tensor.name.endswith(part) and len(tensor.shape) > 1:
                setattr(config, setting, int(tensor.shape[1]))


class _Filling:
    """Puts the tensors of a file in the places of a model's weights."""

    def __init__(self, model: Any, file: Path, head: GgufFile, dtype: torch.dtype):
        self.model = model
        self.file = file
        self.dtype = dtype
        self.tensors = head.tensors
        self.processor = processor(model, head)
        self.names = {weight: tensor for tensor, weight in weights(model, head).items()}
        size = file.stat().st_size
        self.bytes: Any = torch.UntypedStorage.from_file(str(file), False, size)
        self.packed: dict[str, nn.Parameter] = {}  # by the tensor's name, as some are shared

    def stored_bytes(self) -> dict[str, int]:
        sizes = {
            f"{path}.weight": int(self._matrix(path, module).n_bytes)
            for path, module in self._matrices()
        }
        for path in experts_of(self.model):
            gate, up, down = (int(self._of_experts(path, part).n_bytes) for part in PARTS)
            sizes |= {f"{path}.gate_up_proj": gate + up, f"{path}.down_proj": down}
        return sizes

    def run(self) -> None:
        for path, experts in experts_of(self.model).items():
            self._replace(path, self._experts(path, experts))
        for path, module in self._matrices():
            filled = self._embedding if type(module) is nn.Embedding else self._linear
            self._replace(path, filled(path, module))
        for name, weight in list(self.model.named_parameters()):
            if weight.is_meta:
                path, _, last = name.rpartition(".")
                self.model.get_submodule(path).register_parameter(last, self._plain(name, weight))

    def _matrices(self) -> list[tuple[str, Any]]:
        """The modules whose weight stays as it is stored: not a shared expert's gate, whose weight
        is one row."""
        modules = self.model.named_modules()
        return [
            (path, m)
            for path, m in modules
            if type(m) in (nn.Embedding, nn.Linear) and len(m.weight) > 1
        ]

    def _matrix(self, path: str, module: nn.Module) -> Any:
        """The tensor of a module's weight. Without one of its own a head has the embedding's."""
        tied = "output.weight" not in self.tensors
        if tied and module is self.model.get_output_embeddings():
            return self._tensor(f"{path}.weight", "token_embd.weight")
        return self._tensor(f"{path}.weight", None)

    def _replace(self, path: str, module: nn.Module) -> None:
        parent, _, name = path.rpartition(".")
        setattr(self.model.get_submodule(parent), name, module)

    def _linear(self, path: str, module: nn.Linear) -> StoredLinear:
        tensor = self._matrix(path, module)
        packed = self._packed(tensor, tuple(module.weight.shape))
        bias = None if module.bias is None else self._plain(f"{path}.bias", module.bias)
        return StoredLinear(packed, int(tensor.tensor_type), module.in_features, bias)

    def _embedding(self, path: str, module: nn.Embedding) -> nn.Module:
        tensor = self._matrix(path, module)
        packed = self._packed(tensor, tuple(module.weight.shape))
        stored = int(tensor.tensor_type)
        return StoredEmbedding(packed, stored, module.embedding_dim, self.dtype)

    def _experts(self, path: str, module: Any) -> StoredExperts:
        matrices = {}
        for part, shape in matrix_shapes(module).items():
            tensor = self._of_experts(path, part)
            packed = self._packed(tensor, shape)
            matrices[part] = StoredMatrices(packed, int(tensor.tensor_type), shape[-1])
        return StoredExperts(**matrices, gating=Activated(module.act_fn))

    def _of_experts(self, path: str, part: str) -> Any:
        """The tensor with a matrix of each expert."""
        down = self.names.get(f"{path}.down_proj", "")
        return self._tensor(f"{path}.{part}_proj", down.replace("_down_", f"_{part}_") + ".weight")

    def _tensor(self, name: str, source: str | None) -> Any:
        stored = source or self.names.get(name, "")
        if stored not in self.tensors:
            whose = f"{stored} of {name}" if stored else name
            raise UnsupportedModel(f"{self.file.name} lacks the weight {whose}")
        return self.tensors[stored]

    def _packed(self, tensor: Any, shape: tuple[int, ...]) -> nn.Parameter:
        """The bytes of a weight's rows, of which `shape` has the numbers: the file's own, or a copy
        where it has rows in another order."""
        if tensor.name not in self.packed:
            rows = self._rows(tensor, shape)
            self.packed[tensor.name] = nn.Parameter(rows, requires_grad=False)
        return self.packed[tensor.name]

    def _rows(self, tensor: Any, expected: tuple[int, ...]) -> Tensor:
        kind = int(tensor.tensor_type)
        *rows, width = shape = tuple(map(int, reversed(tensor.shape)))
        refuse(
            {
                f"{tensor.name} is stored as {tensor.tensor_type.name}, and what is multiplied as "
                f"it is stored is {', '.join(KINDS.values())}; {WAY_OUT}": kind not in KINDS,
                f"{tensor.name} is {shape} in the file and {expected} by its configuration": (
                    shape != expected
                ),
                f"{tensor.name} has rows of {width} numbers, not a multiple of 32; {WAY_OUT}": (
                    width % 32
                ),
            },
            UnsupportedModel,
        )
        row_bytes = int(tensor.n_bytes) // prod(rows)
        flat = torch.empty(0, dtype=torch.uint8).set_(
            self.bytes, int(tensor.data_offset), (int(tensor.n_bytes),), (1,)
        )
        packed = flat.view(*rows, row_bytes)
        array = packed.numpy()
        ordered = self.processor.process(array, name=tensor.name).weights
        if ordered is array:
            return packed
        return torch.from_numpy(np.ascontiguousarray(ordered))

    def _plain(self, name: str, like: Tensor) -> nn.Parameter:
        from gguf import dequantize

        tensor = self._tensor(name, None)
        numbers = dequantize(tensor.data, tensor.tensor_type)
        numbers = self.processor.process(weights=numbers, name=tensor.name).weights
        if np.squeeze(numbers).shape != tuple(like.squeeze().shape):  # axes of one are left out
            raise UnsupportedModel(
                f"{tensor.name} is {tuple(numbers.shape)} in the file and {tuple(like.shape)} by "
                "its configuration"
            )
        weight = torch.tensor(numbers).to(self.dtype).view(like.shape)
        return nn.Parameter(weight, requires_grad=False)
