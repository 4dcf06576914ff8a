"""Reading gpt-oss's experts as they ship, in MXFP4 (OCP Microscaling Formats): numbers of 4 bits,
and a power of two for each 32 of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ttc.model.grouped_weights import HALF
from ttc.model.stored_experts import Clamped, StoredExperts, StoredMatrices

MXFP4 = 39
"""The kernel's number of this kind, which is ggml's."""
BLOCK, BLOCK_BYTES = 32, 17
"""Numbers of a block, and its bytes in the kernel's form."""

Read = Callable[[str, tuple[int, ...]], Tensor]
"""From a tensor's name and shape to the tensor. Raises UnsupportedModel for another shape."""


def mxfp4_experts_of(model: nn.Module) -> dict[str, Any]:
    """The modules of a model whose experts ship so, by name."""
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    return {path: module for path, module in model.named_modules() if type(module) is GptOssExperts}


def read_experts(path: str, module: Any, dtype: torch.dtype, read: Read) -> StoredExperts:
    """The experts of a layer. Files have the rows of gate and up in turn."""

    def matrices(name: str, like: Tensor, rows: slice) -> StoredMatrices:
        count, width, height = like.shape
        groups = width // BLOCK
        blocks = read(f"{path}.{name}_blocks", (count, height, groups, HALF))[:, rows]
        scales = read(f"{path}.{name}_scales", (count, height, groups))[:, rows]
        bias = read(f"{path}.{name}_bias", (count, height))[:, rows].to(dtype).contiguous()
        packed = torch.stack([in_blocks(*its) for its in zip(blocks, scales, strict=True)])
        return StoredMatrices(packed, MXFP4, width, bias=nn.Parameter(bias, requires_grad=False))

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


def bytes_of_experts(path: str, module: Any) -> dict[str, int]:
    """Their bytes by the names of plain weights."""
    weights = {"gate_up_proj": module.gate_up_proj, "down_proj": module.down_proj}
    return {
        f"{path}.{name}": weight.numel() // BLOCK * BLOCK_BYTES for name, weight in weights.items()
    }
