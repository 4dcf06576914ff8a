"""Modules whose weights stay as they are stored: what is asked of them. The part `stored` has
them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn


class Stored(nn.Module, ABC):
    """A module with weights that stay as they are stored.

    stands_for: the module of plain weights that it does the same as. numbers: how many numbers a
    row is multiplied by.
    """

    stands_for: ClassVar[type | None] = None
    numbers: int = 0

    @abstractmethod
    def weight_bytes(self) -> dict[str, int]:
        """The bytes of each, by the name that it has in a module of plain weights."""


class StoredMatrix(Stored):
    """A linear layer of such weights.

    rounding: what rounds the rows that come (`ttc.stored.int8_activations.Int8Rows`), None to
    multiply exactly.
    """

    stands_for = nn.Linear
    in_features: int
    out_features: int
    bias: nn.Parameter | None
    rounding: Any

    @abstractmethod
    def multiplies(self, dtype: torch.dtype) -> bool:
        """Whether compiled code multiplies rows of this type by it."""

    @abstractmethod
    def operand(self, at: Any, dtype: torch.dtype) -> dict[int, int]:
        """What compiled layers are told of it (`at`: names of fields), for rows of this type."""


def stored_bytes(model: nn.Module) -> dict[str, int]:
    """The bytes of each weight that stays as it is stored, by the name that it has in a model of
    plain weights."""
    return {
        f"{path}.{name}": size
        for path, module in model.named_modules()
        if isinstance(module, Stored)
        for name, size in module.weight_bytes().items()
    }
