"""What keeps a model's weights as they are stored, and what it cannot keep so."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import cached_file

from ttc.errors import refuse
from ttc.model.loading.model_files import whole_folder
from ttc.stored.gguf_loading import bytes_in_file, read_stored, why_not
from ttc.stored.mxfp4_loading import bytes_in_folder, check_method, read_folder


def stored_weights(
    device: torch.device, dtype: torch.dtype, spread: bool = False
) -> StoredWeights | None:
    """What reads them, None, with a warning, where they are unpacked for want of a compiler.

    spread: whether layers run on several devices. Raises InvalidInput for what does not go with it.
    """
    cpu = "quantized=True runs on a CPU"
    refuse(
        {
            f"{cpu}, not on {device}; give device='cpu'": device.type != "cpu",
            f"{cpu}, and device_map names several devices; leave one out": spread,
            f"quantized=True computes in float32 or bfloat16, not in {dtype}; give one of these": (
                dtype not in (torch.float32, torch.bfloat16)
            ),
        }
    )
    if reason := why_not():
        warnings.warn(f"the model's weights are unpacked: {reason}", stacklevel=4)
        return None
    return StoredWeights(dtype)


@dataclass(frozen=True)
class StoredWeights:
    """Reads a model whose rest is of this type. source: a file's or a folder's place. options: as
    transformers takes them, with the name of a .gguf file if it is one."""

    dtype: torch.dtype

    def check(self, config: Any) -> None:
        """Raises InvalidInput or UnsupportedModel for a folder whose weights are not kept."""
        check_method(config)

    def model(self, config: Any, source: str, options: Mapping[str, Any]) -> Any:
        if (file := _file(source, options)) is not None:
            return read_stored(AutoModelForCausalLM, config, self.dtype, file)
        return read_folder(AutoModelForCausalLM, config, self.dtype, whole_folder(source))

    def sizes(self, config: Any, source: str, options: Mapping[str, Any]) -> dict[str, int]:
        """The bytes of each weight that is kept, by its name in transformers; nothing is read but
        the head of a file."""
        if (file := _file(source, options)) is not None:
            return bytes_in_file(AutoModelForCausalLM, config, self.dtype, file)
        return bytes_in_folder(AutoModelForCausalLM, config, self.dtype, whole_folder(source))


def _file(source: str, options: Mapping[str, Any]) -> Path | None:
    return Path(str(cached_file(source, name))) if (name := options.get("gguf_file")) else None
