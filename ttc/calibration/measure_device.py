"""Measuring what a device and a link can do (HELM, section 4.1.2), in about a minute for a dtype.

The paper times products and copies by themselves. Here products, attention and overheads are those
of the engine's own decoding passes over random models: a layer's time is the difference between two
depths. So what is measured is whatever runs a model on this machine: compiled layers, packed or
plain modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Qwen3Config

from ttc.calibration.pass_timer import PassTimer
from ttc.cost_model.bandwidth import measure_cache, read_bandwidth
from ttc.cost_model.device_profile import GROUP, RUN, DeviceProfile, LinkProfile
from ttc.cost_model.profile_file import BY_MODULES, PLAIN
from ttc.cost_model.unit import Pass
from ttc.errors import TTCError
from ttc.memory.link import Link, Transfer
from ttc.model.loading.partition import partition_units
from ttc.model.runner_choice import RunnerChoice
from ttc.residency.base import Residency
from ttc.residency.headwise import Headwise

ROWS = (1, 4, 16, 64, 256)
SHORT, LONG = 16, 8192
"""Contexts: attention is the difference between them. At the long one it is most of a pass, and
what it reads lies in memory, not in a cache."""

WIDE: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 256,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
}
"""Blocks of Qwen3-1.7B: their weights lie in memory, not in a cache."""

ATTENDING = WIDE | {"hidden_size": 128, "intermediate_size": 256}
"""Blocks with the same heads and little else."""
DEPTH = 4
"""How many of them."""

TURN_S = 0.05
"""After how many seconds the passes of a model end in each turn, after the least number of them."""

TURNS = 5
"""How often both depths of a model are timed, in turn: the median difference counts, as a machine's
speed changes within seconds."""

PAUSE_S = 0.01
"""About as long as a pass computes between two copies."""
VOCABULARIES = 256, 1 << 15
MANY = 16
"""The branches whose pieces are counted, and the most rows with which what streams is measured."""
FAST_GBPS = 100.0
"""The speed of a link on which bytes cost next to nothing."""

NARROW = WIDE | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
"""Blocks that cost little but their overhead."""


class MemoryRates(NamedTuple):
    """How fast a device reads, whatever the numbers are: see `DeviceProfile`."""

    bandwidth: float
    l3_bytes: float
    l3_bandwidth: float


def profile_memory(device: torch.device) -> MemoryRates:
    """Measure how fast a device's memory and its last cache are read. Half a GiB of it is
    needed."""
    return MemoryRates(
        read_bandwidth(device), *(measure_cache() if device.type == "cpu" else (0, 0.0))
    )


class AttentionSpeed(NamedTuple):
    """How fast a device attends in one dtype, and what is done between passes, whatever runs the
    other parts of the layers: see `DeviceProfile`."""

    attention_flops: dict[int, float]
    streamed_flops: dict[int, float]
    piece_s: float
    fetch_s: float = 0.0
    row_s: float = 0.0
    logit_s: float = 0.0
    step_s: float = 0.0


def profile_attention(device: torch.device, dtype: torch.dtype) -> AttentionSpeed:
    """Measure attention to a shared prefix, and what stands around a pass.

    Of attention: by rows, where the prefix is on the device and where it comes over the link, waits
    left out; what a piece that comes so costs besides (the prefix, and runs of `RUN` tokens that
    each branch has); and what a copy costs, as each KV head comes by itself. Between two passes:
    what a branch costs with a small vocabulary and with a large one. Of a step: what it costs
    before its first pass and after its last one.

    Raises TTCError when the machine was too busy for times to make sense.
    """
    timer = partial(_timer, device=device, dtype=dtype, runner="auto")
    there = timer(ATTENDING, DEPTH)
    streamed = timer(ATTENDING, DEPTH, Headwise(link_gbps=FAST_GBPS))
    least = {rows: there.seconds(rows, SHORT) for rows in ROWS}
    streamed_least = {rows: streamed.seconds(rows, SHORT) for rows in ROWS if rows <= MANY}
    short_piece_s = max(0.0, (streamed_least[MANY] - least[MANY]) / DEPTH / (1 + MANY))
    run_s, streamed_run_s = (timed.seconds(MANY, SHORT, own=RUN) for timed in (there, streamed))
    step_s = there.around_s
    # the prefix, and of each branch its run and the tokens of the first passes
    piece_s = max(0.0, (streamed_run_s - run_s) / DEPTH / (1 + 2 * MANY))
    heads = ATTENDING["num_key_value_heads"]
    by_head = timer(ATTENDING, DEPTH, Headwise(link_gbps=FAST_GBPS, head_group=1))
    fetches_s = (by_head.seconds(1, SHORT) - streamed_least[1]) / DEPTH
    # a fetch is of the prefix and of the branch
    fetch_s = fetches_s / (heads - 1) - 2 * short_piece_s
    return AttentionSpeed(
        _attention(dtype, least, {rows: there.seconds(rows, LONG) for rows in least}),
        _attention(
            dtype, streamed_least, {rows: streamed.seconds(rows, LONG) for rows in streamed_least}
        ),
        piece_s,
        max(0.0, fetch_s),
        *_drawing(timer),
        step_s,
    )


def _drawing(timer: Callable[..., PassTimer]) -> tuple[float, float]:
    """(row_s, logit_s) of `DeviceProfile`."""
    times = {}
    for vocabulary in VOCABULARIES:
        passes = timer(NARROW | {"vocab_size": vocabulary}, 1)
        passes.seconds(MANY, SHORT)
        times[vocabulary] = passes.between_s / MANY
    few, many = VOCABULARIES
    logit_s = max(0.0, times[many] - times[few]) / (many - few)
    return max(0.0, times[few] - few * logit_s), logit_s


def profile_device(
    device: torch.device,
    dtype: torch.dtype,
    runner: RunnerChoice = "auto",
    memory: MemoryRates | None = None,
    attention: AttentionSpeed | None = None,
    pack: bool = True,
) -> DeviceProfile:
    """Measure a device. One GiB of its memory is needed in 16-bit numbers.

    runner: what runs the models' layers; placed models run by their own "modules". pack: whether
    the modules' weights are packed where that is of use; those of layers that stream are not.
    memory, attention: what was measured already, as one is the same for all dtypes and the other
    for all runners; None to measure it. Its bandwidth is read again around the layers, since a
    stored profile is scaled by it (`read_now`), and it drifts. Raises TTCError when the machine was
    too busy for times to make sense.
    """
    by = "" if runner != "modules" else BY_MODULES if pack else PLAIN
    memory = memory or profile_memory(device)
    layers = _Layers(device, dtype, runner, pack, TURNS)
    speeds = [read_bandwidth(device)]
    block_overhead_s, pass_overhead_s = layers.overheads()
    speeds.append(read_bandwidth(device))
    by_rows = layers.by_rows(ROWS, block_overhead_s)
    speeds.append(read_bandwidth(device))
    return DeviceProfile(
        name=f"{device.type} {str(dtype).removeprefix('torch.')}{by}",
        block_overhead_s=block_overhead_s,
        **by_rows._asdict(),
        pass_overhead_s=pass_overhead_s,
        **memory._replace(bandwidth=median(speeds))._asdict(),
        **(attention or profile_attention(device, dtype))._asdict(),
    )


class ProfileBeside:
    """A device's profile at the time when a model is timed, for a machine whose speed changes
    within seconds.

    What streams over a link is not measured. device, dtype: as of `profile_device`.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype, self.memory = device, dtype, profile_memory(device)
        self._layers = _Layers(device, dtype, "auto")
        self._near, self._far = (
            _timer(ATTENDING, DEPTH, device=device, dtype=dtype) for _ in range(2)
        )

    def measure(
        self, timer: PassTimer, rows: int, context: int, group: float, prefixes: int = 1
    ) -> tuple[DeviceProfile, float]:
        """The profile for so many rows with `group` queries to a KV head, and the seconds of such a
        pass of the model on prefixes of `context` tokens, all within a second or so.

        Raises TTCError when the machine was too busy for times to make sense.
        """
        # one row attends what a branch has alone, so many with `GROUP` queries a shared prefix
        counts = sorted({1, ceil(rows / prefixes * group / GROUP)})
        near, far = (
            {count: attending.seconds(count, tokens, TURN_S) for count in counts}
            for attending, tokens in ((self._near, SHORT), (self._far, LONG))
        )
        bandwidth = read_bandwidth(self.device)
        pass_s = timer.seconds(rows, context, TURN_S, prefixes)
        block_overhead_s, pass_overhead_s = self._layers.overheads()
        profile = DeviceProfile(
            name=str(self.device),
            **self.memory._replace(bandwidth=bandwidth)._asdict(),
            **self._layers.by_rows([rows], block_overhead_s)._asdict(),
            attention_flops=_attention(self.dtype, near, far),
            block_overhead_s=block_overhead_s,
            pass_overhead_s=pass_overhead_s,
        )
        return profile, pass_s


def profile_link(device: torch.device, gbps: float) -> LinkProfile:
    """Measure copies between the host and the device; on a CPU, over a simulated link of `gbps` x
    1e9 bytes/s. The latency is that of a copy after a pause, as between the passes of a model."""
    simulated = device.type == "cpu"
    link = Link(device, gbps if simulated else None)
    times: dict[tuple[str, int], float] = {}
    for nbytes in (8, 1 << 26):
        host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=not simulated)
        there = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        for way, copy, pair in (
            ("in", link.fetch, (there, host)),
            ("out", link.store, (host, there)),
        ):
            times[way, nbytes] = median(
                _after_a_pause(partial(_copy, link, copy, pair)) for _ in range(5)
            )
    return LinkProfile(
        to_device_bandwidth=(1 << 26) / times["in", 1 << 26],
        to_host_bandwidth=(1 << 26) / times["out", 1 << 26],
        to_device_latency_s=times["in", 8],
        to_host_latency_s=times["out", 8],
        simulated=simulated,
    )


def _after_a_pause(call: Callable[[], None]) -> float:
    """Seconds of a call, while this thread has not rested but others have."""
    begun = perf_counter()
    while perf_counter() < begun + PAUSE_S:
        pass
    start = perf_counter()
    call()
    return perf_counter() - start


def _copy(link: Link, copy: Callable[..., Transfer], pair: tuple[Tensor, Tensor]) -> None:
    link.wait_on_host(copy([pair], "profile"))


class ByRows(NamedTuple):
    """What a layer costs, by rows: see `DeviceProfile`."""

    flops: dict[int, float]
    block_overheads: dict[int, float]
    head_s: dict[int, float]


class _Layers:
    """Models of three kinds of layers, each of two depths, timed in so many turns: layers that cost
    little but their overhead, those with many heads besides, and those with as many heads and large
    products."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        runner: RunnerChoice,
        pack: bool = True,
        turns: int = 1,
    ):
        self.turns = turns
        timer = partial(_timer, device=device, dtype=dtype, runner=runner, pack=pack)
        self.narrow = {layers: timer(NARROW, layers) for layers in (2, 10)}
        self.attending = {layers: timer(ATTENDING, layers) for layers in (1, 5)}
        self.wide = {layers: timer(WIDE, layers) for layers in (1, 3)}
        self.blocks = [
            partition_units(model_config(shape, 1), dtype)[1] for shape in (NARROW, ATTENDING, WIDE)
        ]

    def overheads(self) -> tuple[float, float]:
        """(delta, what a pass costs besides) in seconds, of one row."""
        layer_s, rest_s = self._parts(self.narrow, 1)
        return _positive(layer_s, "a narrow layer"), max(0.0, rest_s)

    def by_rows(self, counts: Iterable[int], block_overhead_s: float) -> ByRows:
        """What the three kinds of layers differ in. Between the two with as many heads it is their
        products alone; between the two with few products it is their heads. A layer costs no less
        than with one row, `block_overhead_s`."""
        costs = ByRows({}, {}, {})
        narrow, attending, wide = self.blocks
        for rows in sorted(counts):
            narrow_s, attending_s, wide_s = (
                self._parts(timers, rows)[0] for timers in (self.narrow, self.attending, self.wide)
            )
            products_s = _positive(wide_s - attending_s, f"a wide layer's products at {rows} rows")
            flops = (wide.f_proj(rows) - attending.f_proj(rows)) / products_s
            narrow_s -= narrow.f_proj(rows) / flops
            attending_s -= attending.f_proj(rows) / flops
            more = rows * (attending.projected - narrow.projected)
            head_s = max(0.0, (attending_s - narrow_s) / more)
            each_s = narrow_s - rows * narrow.projected * head_s
            costs.flops[rows] = flops
            costs.block_overheads[rows] = max(block_overhead_s, each_s)
            costs.head_s[rows] = head_s
        return costs

    def _parts(self, timers: Mapping[int, PassTimer], rows: int) -> tuple[float, float]:
        """Seconds of a layer, and of the rest of a pass, from the passes of two depths."""
        (few, shallow), (many, deep) = timers.items()
        layers_s, rests_s = list[float](), list[float]()
        for _ in range(self.turns):
            shallow_s, deep_s = (timer.seconds(rows, SHORT, TURN_S) for timer in (shallow, deep))
            layers_s.append((deep_s - shallow_s) / (many - few))
            rests_s.append(shallow_s - few * layers_s[-1])
        return median(layers_s), median(rests_s)


def _attention(
    dtype: torch.dtype, near_s: Mapping[int, float], far_s: Mapping[int, float]
) -> dict[int, float]:
    """FLOP/s of attention, by rows. near_s, far_s: the seconds of a pass on a short prefix and on a
    long one."""
    block = partition_units(model_config(ATTENDING, 1), dtype)[1]
    rates = {}
    for rows in near_s:
        far, near = (block.f_attn(Pass(rows, shared_tokens=context)) for context in (LONG, SHORT))
        layer_s = (far_s[rows] - near_s[rows]) / DEPTH
        rates[rows] = (far - near) / _positive(layer_s, f"attention at {rows} rows")
    return rates


def _timer(
    shape: dict[str, Any],
    layers: int,
    memory: Residency | None = None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    runner: RunnerChoice = "auto",
    pack: bool = True,
) -> PassTimer:
    return PassTimer(model_config(shape, layers), device, dtype, runner, memory, pack)


def model_config(shape: dict[str, Any], layers: int) -> Qwen3Config:
    return Qwen3Config(**shape, num_hidden_layers=layers)


def _positive(seconds: float, what: str) -> float:
    if seconds <= 0:
        raise TTCError(
            f"{what} seemed to take {seconds * 1e3:.3f} ms; the machine is too busy to be "
            "measured. Stop other work and run the same command again"
        )
    return seconds
