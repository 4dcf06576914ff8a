"""What a device and a link can do: HELM's DeviceProfile (Eq. 4.6) and LinkProfile.

The paper has two rates of computing, P_dec and P_pre. Here a profile has the rate at each of
several numbers of rows, as a search decodes 1 to 256 rows at once. L3's bandwidth is a figure of
its own; the paper takes three times M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite, log

from ttc.errors import InvalidInput

SpeedTable = Mapping[int, float]
"""Floating-point operations a second, by rows."""

GROUP = 2
"""Queries to a KV head, of the layers that attention is measured with."""
RUN = 128
"""Tokens of a branch's own runs of KV that `piece_s` is measured with."""
RATES = ("flops", "attention_flops", "streamed_flops")
"""The fields of a profile that hold rates by rows."""
BY_ROWS = (*RATES, "block_overheads", "head_s")
"""The fields of a profile that hold anything by rows."""
BUFFERS = 2
"""Through which what streams to a device passes: one is worked with, the other takes what comes
next meanwhile."""


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """D of Eq. 4.6, for one dtype.

    flops: P, floating-point operations a second of matrix products, by rows. P_dec is that of few
    rows, P_pre of many.
    attention_flops: the same of attention with `GROUP` queries to a KV head. Without any, attention
    runs at P, as in the paper. streamed_flops: the same of attention to KV that comes over the
    link, which is attended piece by piece; without any, it is like all other. piece_s: what each of
    these pieces costs besides, with `RUN` tokens of its own where it is a branch's. fetch_s: what
    each copy to the device costs.
    bandwidth: M, bytes a second read from memory.
    l3_bytes, l3_bandwidth: C_L3 and B_L3; 0 where no such cache counts.
    row_s, logit_s: what a branch costs between two passes, as its token is drawn: besides, and for
    each token of the vocabulary. step_s: what a step costs before its first pass and after its
    last one.
    block_overhead_s: delta of Table 6.5, what a block costs in any pass. block_overheads: the same
    by rows; without any, it is always `block_overhead_s`. head_s: by rows, what each number of a
    row's queries, keys and values costs in a block besides products and attention to what was there
    before, as norms, rotations and storing do; the paper has no such term. pass_overhead_s: what
    any pass costs besides.
    eta_c, eta_m: the shares of P and of M that a model reaches.
    Raises InvalidInput for a rate or share that is not above 0.
    """

    name: str
    bandwidth: float
    flops: SpeedTable
    attention_flops: SpeedTable = field(default_factory=dict)
    streamed_flops: SpeedTable = field(default_factory=dict)
    block_overheads: Mapping[int, float] = field(default_factory=dict)
    head_s: Mapping[int, float] = field(default_factory=dict)
    l3_bytes: float = 0
    l3_bandwidth: float = 0
    piece_s: float = 0
    fetch_s: float = 0
    row_s: float = 0
    logit_s: float = 0
    step_s: float = 0
    block_overhead_s: float = 0
    pass_overhead_s: float = 0
    eta_c: float = 1.0
    eta_m: float = 1.0

    def __post_init__(self) -> None:
        rates = [(name, at) for name in RATES for at in getattr(self, name).values()]
        rates += [("flops", len(self.flops))]
        rates += [(name, getattr(self, name)) for name in ("bandwidth", "eta_c", "eta_m")]
        for name, value in rates:
            if not (isfinite(value) and value > 0):
                raise InvalidInput(f"{name} of {self.name} is {value}; it must be above 0")

    def block_s(self, rows: int, projected: int = 0) -> float:
        """What a block costs besides in a pass of so many rows, in seconds. projected: numbers of a
        row's queries, keys and values."""
        each_s = self.block_overhead_s
        if self.block_overheads:
            each_s = _at(self.block_overheads, rows)
        heads_s = _between(self.head_s, rows) if self.head_s else 0.0
        return each_s + rows * projected * heads_s

    def p(self, rows: int) -> float:
        """P at so many rows, FLOP/s; between two measured numbers of rows, on the line through
        their logarithms."""
        return _at(self.flops, rows)

    def p_attn(self, rows: int, group: float = GROUP) -> float:
        """P of attention at so many rows, FLOP/s. group: queries to a KV head; they count as rows,
        as they read the same keys and values. With fewer than were measured, reading them is what
        takes the time."""
        if not self.attention_flops:
            return _at(self.flops, rows)
        return _at_group(self.attention_flops, rows, group)

    def p_streamed(self, rows: int, group: float = GROUP) -> float:
        """P of attention to KV that comes over the link at so many rows, FLOP/s."""
        if not self.streamed_flops:
            return self.p_attn(rows, group)
        return _at_group(self.streamed_flops, rows, group)


@dataclass(frozen=True, kw_only=True)
class LinkProfile:
    """L: bytes a second and seconds of latency, each way.

    simulated: whether the figures are those of a stated link, not of this machine.
    """

    to_device_bandwidth: float
    to_host_bandwidth: float
    to_device_latency_s: float = 0
    to_host_latency_s: float = 0
    simulated: bool = False


def _at_group(rates: SpeedTable, rows: int, group: float) -> float:
    alike = rows * group / GROUP
    return _at(rates, alike) * min(1.0, alike / min(rates))


def _at(rates: SpeedTable, rows: float) -> float:
    counts = sorted(rates)
    if rows <= counts[0]:
        return rates[counts[0]]
    for low, high in pairwise(counts):
        if rows <= high:
            part = log(rows / low) / log(high / low)
            return float(rates[low] * (rates[high] / rates[low]) ** part)
    return rates[counts[-1]]


def _between(values: Mapping[int, float], rows: float) -> float:
    """As `_at`, of values that may be 0: on the line through them, by the logarithm of rows."""
    counts = sorted(values)
    for low, high in pairwise(counts):
        if low <= rows <= high:
            return values[low] + (values[high] - values[low]) * log(rows / low) / log(high / low)
    return values[counts[0] if rows < counts[0] else counts[-1]]
