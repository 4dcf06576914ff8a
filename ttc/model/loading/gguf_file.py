"""The head of a .gguf file: its settings, and which weights of transformers' its tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ttc.errors import UnsupportedModel, refusing

OTHER_FILES = "load the model from its own folder (config.json and .safetensors)"


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


class GgufFile:
    """The head of a .gguf file. Its weights are not read."""

    def __init__(self, path: Path):
        from gguf import GGUFReader

        with refusing(
            (ValueError, IndexError, KeyError, OverflowError),
            f"{path.name} is not a whole .gguf file: {{error}}",
            UnsupportedModel,
        ):
            self.reader = GGUFReader(path)
        self.name = path.name
        self.keys = [key for key in self.reader.fields if not key.startswith("GGUF.")]
        self.tensors: Mapping[str, Any] = {tensor.name: tensor for tensor in self.reader.tensors}
        self.architecture = str(self.value("general.architecture"))

    def value(self, key: str, default: Any = None) -> Any:
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting of the architecture, as `attention.head_count`."""
        return self.value(f"{self.architecture}.{name}", default)

    def check(self, name: str, value: Any, fits: bool, reason: str = "") -> None:
        """Raise UnsupportedModel for a setting whose value does not fit."""
        key = name if name.startswith("tokenizer.") else f"{self.architecture}.{name}"
        if not fits:
            raise UnsupportedModel(
                f"{self.name} sets {key} to {str(value)[:60]}, which is not read here"
                f"{reason and f' ({reason})'}; {OTHER_FILES}"
            )

    def numbers(self, tensor: str) -> list[float] | None:
        """A small tensor's numbers; None where the file has no such tensor."""
        from gguf import dequantize

        entry = self.tensors.get(tensor)
        if entry is None:
            return None
        numbers = dequantize(entry.data, entry.tensor_type)
        return [float(number) for number in numbers.reshape(-1)]


def gguf_file(path: Path) -> GgufFile:
    """The head of this file. It is read anew when the file has changed.

    Raises UnsupportedModel for a file that is cut off.
    """
    now = path.stat()
    return _read(path, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=1)  # a model, its configuration and its tokenizer are read one after another
def _read(path: Path, changed_ns: int, size_bytes: int) -> GgufFile:
    return GgufFile(path)


def processor(model: Any, file: GgufFile) -> Any:
    """What gives a file's rows and numbers the order that transformers has them in."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    made_by: Any = theirs.TENSOR_PROCESSORS.get(file.architecture, theirs.TensorProcessor)
    return made_by(config=model.config.to_dict())


def weights(model: Any, file: GgufFile) -> dict[str, str]:
    """The weight of transformers' model that each tensor is, by the tensor's name."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    names: dict[str, str] = theirs.get_gguf_hf_weights_map(model, processor(model, file))
    return names
