"""What attention costs on a CPU, by the kernel and by PyTorch's operations: which of the two a plan takes.

Measured in bfloat16 on an AMD processor with AVX-512, where the kernel always wins (docs/architecture.md). What the
operations take with Intel's tiles (AMX) is an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

import torch

from ttc.attention.entry import Entry
from ttc.attention.kernels import FEW_ROWS

KERNEL_RATE = 110.0
"""Multiplications per ns, where the processor multiplies bfloat16."""
KERNEL_NUMBER_NS = 0.16
"""To read, widen and turn one number of the KV, once for each task that reads it."""
TILES_RATE = 300.0
"""Multiplications per ns of the operations in bfloat16, with tiles."""
READ_NS = 0.35
"""To read one number of the KV."""
WRITTEN_OUT_SCORE_NS = 2.5
"""The softmax of one score that is written out and lies in no cache."""
CALL_NS = 60_000.0
"""The operations of one entry or run, and the merge."""


@cache
def has_feature(feature: str) -> bool:
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

    def operations_are_faster(self, entries: Sequence[Entry], runs: Sequence[tuple[int, int]]) -> bool:
        """Whether a plan with these entries and runs of new tokens (first row and end) takes the operations."""
        sizes = [(end - first, (end - first + 1) / 2, True) for first, end in runs]
        sizes += [(entry.rows.stop - entry.rows.start, entry.length, False) for entry in entries]
        by_kernel = sum(self.by_kernel(rows, keys) for rows, keys, _ in sizes)
        return sum(self.by_operations(*size) for size in sizes) < by_kernel

    def by_kernel(self, rows: int, keys: float) -> float:
        """`rows` rows attend `keys` keys each, by the kernel."""
        tasks = -(-rows // self.task_rows)
        return self.numbers * keys * (tasks * KERNEL_NUMBER_NS + rows * self.groups / KERNEL_RATE)

    def by_operations(self, rows: int, keys: float, causal: bool = False) -> float:
        """The same by PyTorch's operations; infinite without tiles. causal: a run of new tokens,
        which its rows attend."""
        if self.dtype != torch.bfloat16 or not has_feature("amx_tile"):
            return inf
        queries = rows * self.groups
        written_out = not causal and keys >= FEW_ROWS and queries <= FEW_ROWS
        softmax = self.kv_heads * queries * keys * WRITTEN_OUT_SCORE_NS if written_out else 0.0
        return CALL_NS + softmax + self.numbers * keys * (READ_NS + queries / TILES_RATE)
