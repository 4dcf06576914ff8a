"""Measuring what a device and a link can do (HELM, section 4.1.2), in well under a minute.

The paper times products and copies by themselves. Here products, attention and overheads are those of the engine's own
decoding passes over random models: a layer's time is the difference between two depths. So what is measured is whatever
runs a model on this machine: compiled layers, packed or plain modules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Qwen3Config

from ttc.calibration.bandwidth import best_of_five, measure_cache, read_bandwidth
from ttc.calibration.pass_timer import PassTimer
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.partition import partition_units
from ttc.cost_model.profile_file import BY_MODULES
from ttc.cost_model.unit import Pass
from ttc.errors import TTCError
from ttc.memory.link import Link, Transfer
from ttc.model.choice import Choice
from ttc.residency.base import Residency
from ttc.residency.headwise import Headwise

Timer = Callable[..., PassTimer]
"""From a shape, a number of layers and a memory policy, if it is not `Resident`, to what times passes of such a model.
"""

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

MANY = 16
"""The branches whose pieces are counted, and the most rows with which what streams is measured."""
FAST_GBPS = 100.0
"""The speed of a link on which bytes cost next to nothing."""

NARROW = WIDE | {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2}
"""Blocks that cost little but their overhead."""


class Memory(NamedTuple):
    """How fast a device reads, whatever the numbers are: see `DeviceProfile`."""

    bandwidth: float
    l3_bytes: float
    l3_bandwidth: float


def profile_memory(device: torch.device) -> Memory:
    """Measure how fast a device's memory and its last cache are read. Half a GiB of it is needed."""
    return Memory(read_bandwidth(device), *(measure_cache() if device.type == "cpu" else (0, 0.0)))


class Attention(NamedTuple):
    """How fast a device attends in one dtype, whatever runs the other parts of the layers: see `DeviceProfile`."""

    attention_flops: dict[int, float]
    streamed_flops: dict[int, float]
    piece_s: float


def profile_attention(device: torch.device, dtype: torch.dtype) -> Attention:
    """Measure attention. Raises TTCError when the machine was too busy for times to make sense."""
    return _attention(partial(_timer, device=device, dtype=dtype, runner="auto"), dtype)


def profile_device(
    device: torch.device,
    dtype: torch.dtype,
    runner: Choice = "auto",
    memory: Memory | None = None,
    attention: Attention | None = None,
) -> DeviceProfile:
    """Measure a device. One GiB of its memory is needed in 16-bit numbers.

    runner: what runs the models' layers; placed models run by their own "modules". memory, attention: what was measured
    already, as one is the same for all dtypes and the other for all runners; None to measure it.
    Raises TTCError when the machine was too busy for times to make sense.
    """
    name = f"{device.type} {str(dtype).removeprefix('torch.')}{BY_MODULES if runner == 'modules' else ''}"
    timer = partial(_timer, device=device, dtype=dtype, runner=runner)
    block_overhead_s, pass_overhead_s = _overheads(timer)
    return DeviceProfile(
        name=name,
        flops=_products(timer, dtype, block_overhead_s),
        block_overhead_s=block_overhead_s,
        pass_overhead_s=pass_overhead_s,
        **(memory or profile_memory(device))._asdict(),
        **(attention or profile_attention(device, dtype))._asdict(),
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


def _overheads(timer: Timer) -> tuple[float, float]:
    """(delta, what a pass costs besides) in seconds, of one row."""
    few, many = 2, 10
    shallow, deep = (timer(NARROW, layers).seconds(1, SHORT) for layers in (few, many))
    block_s = _positive(deep - shallow, "a narrow layer") / (many - few)
    return block_s, max(0.0, shallow - few * block_s)


def _products(timer: Timer, dtype: torch.dtype, block_overhead_s: float) -> dict[int, float]:
    """FLOP/s of matrix products, by rows."""
    few, many = 1, 3
    shallow, deep = (timer(WIDE, layers) for layers in (few, many))
    block = partition_units(_config(WIDE, 1), dtype)[1]
    found = {}
    for rows in ROWS:
        layer_s = (deep.seconds(rows, SHORT) - shallow.seconds(rows, SHORT)) / (many - few)
        found[rows] = block.f_proj(rows) / _positive(layer_s - block_overhead_s, f"a wide layer at {rows} rows")
    return found


def _attention(timer: Timer, dtype: torch.dtype) -> Attention:
    """FLOP/s of attention to a shared prefix, by rows: where it is on the device, and where it comes over the link,
    waits for it left out; and what a piece that comes so costs besides: the prefix, and what each branch has."""
    layers = 4
    there, streamed = timer(ATTENDING, layers), timer(ATTENDING, layers, Headwise(link_gbps=FAST_GBPS))
    block = partition_units(_config(ATTENDING, 1), dtype)[1]

    def flops(timer: PassTimer, most_rows: int) -> tuple[dict[int, float], float]:
        """FLOP/s, and the seconds of a pass of `MANY` rows on a short prefix."""
        counts = [rows for rows in ROWS if rows <= most_rows]
        seconds = {context: {rows: timer.seconds(rows, context) for rows in counts} for context in (SHORT, LONG)}
        rates = {}
        for rows in counts:
            far, near = (block.f_attn(Pass(rows, shared_tokens=context)) for context in (LONG, SHORT))
            layer_s = (seconds[LONG][rows] - seconds[SHORT][rows]) / layers
            rates[rows] = (far - near) / _positive(layer_s, f"attention at {rows} rows")
        return rates, seconds[SHORT][MANY]

    (attention_flops, least_s), (streamed_flops, streamed_s) = flops(there, max(ROWS)), flops(streamed, MANY)
    return Attention(attention_flops, streamed_flops, max(0.0, (streamed_s - least_s) / layers / (1 + MANY)))


def _timer(
    shape: dict[str, Any],
    layers: int,
    memory: Residency | None = None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    runner: Choice,
) -> PassTimer:
    return PassTimer(_config(shape, layers), device, dtype, runner, memory)


def _config(shape: dict[str, Any], layers: int) -> Qwen3Config:
    return Qwen3Config(**shape, num_hidden_layers=layers)


def _positive(seconds: float, what: str) -> float:
    if seconds <= 0:
        raise TTCError(
            f"{what} seemed to take {seconds * 1e3:.3f} ms; the machine is too busy to be measured. Stop other work "
            "and run the same command again"
        )
    return seconds
