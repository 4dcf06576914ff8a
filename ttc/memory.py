"""The one place that allocates KV: a byte budget, and buffers for segments and tails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ttc.errors import OutOfMemory


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer stores per token. K and V may differ in width (DeepSeek-V3)."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


class KV:
    """Keys and values of a run of tokens for every layer, in one buffer.

    keys[l], values[l]: (kv_heads, tokens, dim), or (rows, kv_heads, tokens, dim) when made with `rows`.
    """

    def __init__(
        self, shapes: Sequence[LayerShape], tokens: int, rows: int | None, dtype: torch.dtype, device: torch.device
    ):
        self.tokens, self.rows = tokens, rows
        lead = () if rows is None else (rows,)
        per_row = tokens * sum(s.elements for s in shapes)
        self.buffer = torch.empty(*lead, per_row, dtype=dtype, device=device)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        start = 0
        for s in shapes:
            for dim, views in ((s.key_dim, self.keys), (s.value_dim, self.values)):
                stop = start + s.kv_heads * tokens * dim
                views.append(self.buffer[..., start:stop].view(*lead, s.kv_heads, tokens, dim))
                start = stop

    @property
    def nbytes(self) -> int:
        return self.buffer.numel() * self.buffer.element_size()


class KVMemory:
    """Allocates and frees KV under a byte budget, everything resident on the device.

    budget_bytes: the most KV that may exist at once; None for no limit but the machine's.
    """

    def __init__(
        self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device, budget_bytes: int | None = None
    ):
        self.shapes = tuple(shapes)
        self.dtype, self.device, self.budget_bytes = dtype, device, budget_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.bytes_per_token = sum(s.elements for s in self.shapes) * torch.empty(0, dtype=dtype).element_size()

    def fits(self, tokens: int) -> bool:
        """Whether the KV of `tokens` more tokens stays within the budget."""
        return self.budget_bytes is None or self.used_bytes + tokens * self.bytes_per_token <= self.budget_bytes

    def require(self, tokens: int) -> None:
        """Raise `OutOfMemory` unless the KV of `tokens` more tokens fits the budget."""
        if not self.fits(tokens):
            wanted = self.used_bytes + tokens * self.bytes_per_token
            raise OutOfMemory(
                f"the KV budget of {self.budget_bytes:,} bytes is too small: {self.used_bytes:,} are in use and "
                f"{tokens:,} more tokens need {tokens * self.bytes_per_token:,}; a budget of {wanted:,} bytes "
                f"({wanted / 2**30:.3f} GiB) would do, or use fewer beams, shorter steps or a smaller batch"
            )

    def allocate(self, tokens: int, rows: int | None = None) -> KV:
        """KV for `tokens` tokens, or for `rows` tails of that capacity."""
        self.require(tokens * (1 if rows is None else rows))
        kv = KV(self.shapes, tokens, rows, self.dtype, self.device)
        self.used_bytes += kv.nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return kv

    def free(self, kv: KV) -> None:
        self.used_bytes -= kv.nbytes
        kv.keys, kv.values = [], []
        del kv.buffer
