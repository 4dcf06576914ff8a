"""Modules whose weights stay as they are stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ttc.model.stored import Stored, StoredMatrix
from ttc.stored import kernel


class Multiplying(nn.Module):
    """What multiplies rows by stored weights.

    packed: the weights' rows as bytes (..., rows, bytes), uint8, which may be part of a file.
    stored: the kernel's number of their kind.
    rounding: what rounds the rows that come, None to multiply exactly.
    """

    rounding: Any = None

    def __init__(self, packed: Tensor, stored: int, bias: nn.Parameter | None):
        super().__init__()
        self.stored = stored
        self.packed = as_weight(packed)
        self.bias = bias

    def product(self, x: Tensor, packed: Tensor) -> Tensor:
        """Rows x times a matrix of `packed`: (rows, bytes)."""
        by = kernel if self.rounding is None else self.rounding
        y: Tensor = by.linear(x, packed, self.stored)
        return y


class StoredLinear(Multiplying, StoredMatrix):
    """A linear layer. packed: (out_features, bytes)."""

    def __init__(self, packed: Tensor, stored: int, in_features: int, bias: nn.Parameter | None):
        super().__init__(packed, stored, bias)
        self.in_features, self.out_features = in_features, len(packed)
        self.numbers = self.in_features * self.out_features

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        y = self.product(rows, self.packed)
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], self.out_features)

    def weight_bytes(self) -> dict[str, int]:
        return {"weight": self.packed.nbytes}

    def multiplies(self, dtype: torch.dtype) -> bool:
        return kernel.products(dtype) != 0

    def operand(self, at: Any, dtype: torch.dtype) -> dict[int, int]:
        rounding = self.rounding
        return {
            at.WEIGHT: self.packed.data_ptr(),
            at.PRODUCTS: kernel.products(dtype) if rounding is None else rounding.products(),
            at.STORED: self.stored,
            at.STORED_ROW: self.packed.stride(0),
        }


class StoredEmbedding(Stored):
    """An embedding. weight: an empty tensor whose type and device are those of what it gives."""

    stands_for = nn.Embedding
    weight: Tensor

    def __init__(self, packed: Tensor, stored: int, width: int, dtype: torch.dtype):
        super().__init__()
        self.num_embeddings, self.embedding_dim = len(packed), width
        self.stored = stored
        self.packed = as_weight(packed)
        self.register_buffer("weight", torch.empty(0, dtype=dtype), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        rows = kernel.unpacked(self.packed[ids.reshape(-1)], self.stored, self.embedding_dim)
        return rows.to(self.weight.dtype).view(*ids.shape, self.embedding_dim)

    def weight_bytes(self) -> dict[str, int]:
        return {"weight": self.packed.nbytes}


def as_weight(packed: Tensor) -> nn.Parameter:
    if isinstance(packed, nn.Parameter):
        return packed
    return nn.Parameter(packed, requires_grad=False)
