"""Measuring what a device and a link can do (HELM, section 4.1.2), in well under a minute.

The paper times products and copies by themselves. Here products, attention and overheads are those of the engine's own
decoding passes over random models: a layer's time is the difference between two depths. So what is measured is whatever
runs a model on this machine: compiled layers, packed or plain modules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config

from ttc.calibration.bandwidth import best_of_five, measure_cache, read_bandwidth
from ttc.calibration.pass_timer import PassTimer
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.partition import partition_units
from ttc.cost_model.unit import Pass
from ttc.errors import TTCError
from ttc.memory.link import Link, Transfer

ROWS = (1, 4, 16, 64, 256)
SHORT, LONG = 16, 2048
"""Contexts: attention is the difference between them."""

WIDE: dict[str, Any] = {
    "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 256, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
"""Blocks of Qwen3-1.7B: their weights lie in memory, not in a cache."""

ATTENDING = WIDE | {"hidden_size": 128, "intermediate_size": 256}
"""Blocks with the same heads and little else."""

NARROW = WIDE | {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2}
"""Blocks that cost little but their overhead."""


def profile_device(device: torch.device, dtype: torch.dtype) -> DeviceProfile:
    """Measure a device. One GiB of its memory is needed in 16-bit numbers.

    Raises TTCError when the machine was too busy for times to make sense.
    """
    name = f"{device.type} {str(dtype).removeprefix('torch.')}"
    block_overhead_s, pass_overhead_s = _overheads(device, dtype)
    l3_bytes, l3_bandwidth = measure_cache() if device.type == "cpu" else (0, 0.0)
    return DeviceProfile(
        name=name,
        bandwidth=read_bandwidth(device),
        flops=_products(device, dtype, block_overhead_s),
        attention_flops=_attention(device, dtype),
        l3_bytes=l3_bytes,
        l3_bandwidth=l3_bandwidth,
        block_overhead_s=block_overhead_s,
        pass_overhead_s=pass_overhead_s,
    )


def profile_link(device: torch.device, gbps: float) -> LinkProfile:
    """Measure copies between the host and the device; on a CPU, over a simulated link of `gbps` x 1e9 bytes/s."""
    simulated = device.type == "cpu"
    link = Link(device, gbps if simulated else None)
    times: dict[tuple[str, int], float] = {}
    for nbytes in (8, 1 << 26):
        host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=not simulated)
        there = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        for way, copy, pair in (("in", link.fetch, (there, host)), ("out", link.store, (host, there))):
            times[way, nbytes] = best_of_five(partial(_copy, link, copy, pair))
    return LinkProfile(
        to_device_bandwidth=(1 << 26) / times["in", 1 << 26],
        to_host_bandwidth=(1 << 26) / times["out", 1 << 26],
        to_device_latency_s=times["in", 8],
        to_host_latency_s=times["out", 8],
        simulated=simulated,
    )


def _copy(link: Link, copy: Callable[..., Transfer], pair: tuple[Tensor, Tensor]) -> None:
    link.wait_on_host(copy([pair], "profile"))


def _overheads(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """(delta, what a pass costs besides) in seconds, of one row."""
    few, many = 2, 10
    shallow, deep = (_timer(NARROW, layers, device, dtype).seconds(1, SHORT) for layers in (few, many))
    block_s = _positive(deep - shallow, "a narrow layer") / (many - few)
    return block_s, max(0.0, shallow - few * block_s)


def _products(device: torch.device, dtype: torch.dtype, block_overhead_s: float) -> dict[int, float]:
    """FLOP/s of matrix products, by rows."""
    few, many = 1, 3
    shallow, deep = (_timer(WIDE, layers, device, dtype) for layers in (few, many))
    block = partition_units(_config(WIDE, 1), dtype)[1]
    found = {}
    for rows in ROWS:
        layer_s = (deep.seconds(rows, SHORT) - shallow.seconds(rows, SHORT)) / (many - few)
        found[rows] = block.f_proj(rows) / _positive(layer_s - block_overhead_s, f"a wide layer at {rows} rows")
    return found


def _attention(device: torch.device, dtype: torch.dtype) -> dict[int, float]:
    """FLOP/s of attention to a shared prefix, by rows."""
    layers = 4
    timer = _timer(ATTENDING, layers, device, dtype)
    block = partition_units(_config(ATTENDING, 1), dtype)[1]
    seconds = {context: {rows: timer.seconds(rows, context) for rows in ROWS} for context in (SHORT, LONG)}
    found = {}
    for rows in ROWS:
        far, near = (block.f_attn(Pass(rows, shared_tokens=context)) for context in (LONG, SHORT))
        layer_s = (seconds[LONG][rows] - seconds[SHORT][rows]) / layers
        found[rows] = (far - near) / _positive(layer_s, f"attention at {rows} rows")
    return found


def _timer(shape: dict[str, Any], layers: int, device: torch.device, dtype: torch.dtype) -> PassTimer:
    return PassTimer(_config(shape, layers), device, dtype)


def _config(shape: dict[str, Any], layers: int) -> Qwen3Config:
    return Qwen3Config(**shape, num_hidden_layers=layers)


def _positive(seconds: float, what: str) -> float:
    if seconds <= 0:
        raise TTCError(
            f"{what} seemed to take {seconds * 1e3:.3f} ms; the machine is too busy to be measured. Stop other work "
            "and run the same command again"
        )
    return seconds
