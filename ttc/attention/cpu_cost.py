"""What attention costs on a CPU, by the kernel and by PyTorch's operations: which of the two a plan takes.

Both were measured for 1 to 2,048 rows on 32 to 4,096 keys (3 KV heads of 3 heads of width 64, 8 of 4 of width 128;
bfloat16 and float32), one thread, on an AMD processor with AVX-512. The kernel was as fast or faster but for one case:
bfloat16, wide heads, and about 64 to 256 queries for a KV head. A chunk of a prefill is faster by the kernel too. The
rates below fit the longer of these times to about 30%; only their ratios matter. Intel's tiles (AMX) multiply bfloat16
several times faster than vectors do. They were not measured: their rate is an estimate, by which long prefills stay
with PyTorch's operations there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from ttc.attention.kernels import FEW_ROWS

KERNEL_RATE = 62.0
"""Multiplications per ns."""
KERNEL_NUMBER_NS = 0.22
"""To read, widen and turn one number of the KV, once for each task that reads it."""
WRITTEN_OUT_RATE = 150.0
"""Multiplications per ns of a matrix product in bfloat16."""
WRITTEN_OUT_SCORE_NS = 1.55
"""The softmax of one score."""
READ_NS = 0.35
"""To read one number of the KV."""
OPERATIONS_RATE = 35.0
"""Multiplications per ns otherwise: PyTorch's fused attention in any type, and its products in float32."""
TILES_RATE = 300.0
"""The same in bfloat16 with tiles."""
CALL_NS = 60_000.0
"""The operations of one entry or run, and the merge."""


@cache
def _has(feature: str) -> bool:
    return bool(getattr(torch.cpu, f"_is_{feature}_supported", bool)())


@dataclass(frozen=True)
class Cost:
    """Times in ns of one thread, for a layer of this shape."""

    kv_heads: int
    groups: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    task_rows: int
    """The most rows of a kernel's task."""

    @property
    def numbers(self) -> int:
        """Numbers of a token's KV, which are also the multiplications of a row's group with one key."""
        return self.kv_heads * (self.key_dim + self.value_dim)

    def by_kernel(self, rows: int, keys: float) -> float:
        """`rows` rows attend `keys` keys each, by the kernel."""
        tasks = -(-rows // self.task_rows)
        return self.numbers * keys * (tasks * KERNEL_NUMBER_NS + rows * self.groups / KERNEL_RATE)

    def by_operations(self, rows: int, keys: float, causal: bool = False) -> float:
        """The same by PyTorch's operations. causal: a run of new tokens, which its own rows attend."""
        queries = rows * self.groups
        short = self.dtype == torch.bfloat16
        if short and _has("amx_tile"):
            return CALL_NS + self.numbers * keys * (READ_NS + queries / TILES_RATE)
        written_out = not causal and keys >= FEW_ROWS and queries <= FEW_ROWS
        if not (written_out and short and _has("avx512_bf16")):
            return CALL_NS + self.numbers * keys * (READ_NS + queries / OPERATIONS_RATE)
        softmax = self.kv_heads * queries * keys * WRITTEN_OUT_SCORE_NS
        return CALL_NS + softmax + self.numbers * keys * (READ_NS + queries / WRITTEN_OUT_RATE)
