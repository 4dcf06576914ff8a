"""How fast memory and the last cache are read."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch


def read_bandwidth(device: torch.device | None = None, nbytes: int = 1 << 29) -> float:
    """Bytes per second that summing a buffer reads, all threads, best of five."""
    buffer = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
    repeats = max(1, (1 << 26) // nbytes)

    def read() -> None:
        for _ in range(repeats):
            buffer.sum()
        if buffer.device.type == "cuda":
            torch.cuda.synchronize(buffer.device)

    return repeats * buffer.numel() * 4 / best_of_five(read)


def measure_cache() -> tuple[int, float]:
    """(bytes, bytes a second) of the processor's last cache, from buffers of 4 to 384 MiB.

    A buffer lies in the cache if it is read faster than the geometric mean of the fastest and of
    memory. (0, 0.0) where none is read 1.3 times as fast as memory.
    """
    sizes = [part << power for power in range(20, 27) for part in (4, 6)]
    speeds = [read_bandwidth(nbytes=size) for size in sizes]
    memory = read_bandwidth()
    fastest = max(speeds)
    if fastest < 1.3 * memory:
        return 0, 0.0
    limit = (fastest * memory) ** 0.5
    cached = [size for size, speed in zip(sizes, speeds, strict=True) if speed >= limit]
    return max(cached), fastest


def best_of_five(call: Callable[[], Any]) -> float:
    """Seconds that a call takes, the least of five."""
    times = []
    for _ in range(5):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)
