"""Using the link that a split leaves idle: an extension of HELM's Algorithm 1, which is not in the
paper.

While the host computes its layers, the link to the device has nothing to do, nor has the device. So
of each large linear layer on the host the device computes a share of the rows, whose weights cross
the link in every pass through two buffers. The search is over pairs (k, share).

Not counted: that the host's memory serves its processor and the link at once, which may slow down
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ttc.cost_model.device_profile import BUFFERS, DeviceProfile, LinkProfile
from ttc.cost_model.roofline import Stage, roofline_time, t_proj
from ttc.cost_model.split_search import (
    ROUNDING,
    Generation,
    Objective,
    SplitPlan,
    fastest,
    fitting,
    split_plan,
)
from ttc.cost_model.unit import Pass
from ttc.errors import OutOfMemory

LEAST_LAYERS = BUFFERS + 1
"""With fewer layers on the host, the buffers would hold the weights of all."""
LINK_USE = 0.9
"""How much of the link the weights are planned to take. What is multiplied crosses as well, and a
link that is late holds up the host, while a smaller share costs little."""
STEPS = 256
"""Shares are multiples of one part in so many."""


@dataclass(frozen=True)
class HelpedStage:
    """The host's layers with the device's help, times of one pass at a share of 1.

    alone_s: without help. saved_s: how much earlier the host is done. crossing_s: of the weights
    over the link.
    helping_s: of the device. after_s: what the device does after the stage, while the link fills
    the buffers again.
    layers: how many are helped. buffer_bytes: of both buffers.
    """

    alone_s: float
    saved_s: float
    crossing_s: float
    helping_s: float
    after_s: float
    layers: int
    buffer_bytes: int

    @classmethod
    def of(
        cls,
        stage: Stage,
        d_cpu: DeviceProfile,
        d_gpu: DeviceProfile,
        link: LinkProfile,
        work: Pass,
        after_s: float,
    ) -> HelpedStage:
        """The stage of `stage`, the units on the host."""
        large = [unit.large_bytes for unit in stage if unit.large_bytes]
        part = sum(large) / (sum(unit.w_param(work.rows) for unit in stage) or 1)
        return cls(
            alone_s=roofline_time(stage, d_cpu, work),
            saved_s=part * t_proj(stage, d_cpu, work),
            crossing_s=sum(large) / (LINK_USE * link.to_device_bandwidth),
            helping_s=part * t_proj(stage, d_gpu, work),
            after_s=after_s,
            layers=len(large),
            buffer_bytes=BUFFERS * max(large, default=0),
        )

    def seconds(self, share: float) -> float:
        """What the stage takes: the longest of what the host, the device and the link do at the
        same time."""
        crossing_s = share * self.crossing_s
        ahead_s = min(self.after_s, crossing_s * BUFFERS / max(self.layers, BUFFERS))
        return max(
            self.alone_s - share * self.saved_s, share * self.helping_s, crossing_s - ahead_s
        )

    def best_share(self, room_bytes: float) -> float:
        """The share with which the stage is fastest, 0 for none, whose buffers take no more than
        `room_bytes`."""
        if self.layers < LEAST_LAYERS:
            return 0.0
        largest = min(1.0, room_bytes / self.buffer_bytes)
        shares = [n / STEPS for n in range(STEPS) if n / STEPS <= largest]
        return min(
            shares,
            key=lambda share: (round(self.seconds(share) / self.alone_s / ROUNDING), share),
            default=0.0,
        )


@dataclass(frozen=True)
class HelpedPlan:
    """A split, and the share of the host's large linear layers that the device computes.
    device_bytes: those of the split and of the buffers."""

    split: SplitPlan
    share: float
    total_s: float
    device_bytes: int


def with_help(
    plan: SplitPlan,
    units: Stage,
    d_cpu: DeviceProfile,
    d_gpu: DeviceProfile,
    link: LinkProfile,
    work: Pass,
    share: float | None = None,
    vram_bytes: int = 0,
) -> HelpedPlan:
    """A split with the device's help. share: None for the fastest whose buffers fit `vram_bytes`
    beside the split."""
    stage = HelpedStage.of(units[: plan.k], d_cpu, d_gpu, link, work, plan.gpu_s)
    if share is None:
        share = stage.best_share(vram_bytes - plan.device_bytes)
    total_s = stage.seconds(share) + plan.gpu_s + plan.comm_s
    return HelpedPlan(plan, share, total_s, plan.device_bytes + ceil(share * stage.buffer_bytes))


def helped_selector(  # noqa: PLR0913 - the variables of HELM's Algorithm 1
    units: Stage,
    d_cpu: DeviceProfile,
    d_gpu: DeviceProfile,
    link: LinkProfile,
    vram_bytes: int,
    generation: Generation,
    objective: Objective = "decode",
    kv_offload: bool = True,
    host_bytes: int | None = None,
    ks: Sequence[int] | None = None,
    share: float | None = None,
) -> HelpedPlan:
    """Algorithm 1 over pairs (k, share): the fastest that fits, the one with most on the device and
    the smallest share among equals.

    ks: the numbers of units on the host that are tried, in ascending order; None for all. share:
    one that is given, None to search it too. The others: see `strategy_selector`.
    Raises OutOfMemory when no split fits, or none with its buffers; InvalidInput for an unknown
    objective.
    """
    tried = range(len(units) + 1) if ks is None else ks
    splits = [
        split_plan(k, units, d_cpu, d_gpu, link, generation, objective, kv_offload) for k in tried
    ]
    work = generation.work(objective)
    plans = [
        with_help(split, units, d_cpu, d_gpu, link, work, share, vram_bytes)
        for split in fitting(splits, vram_bytes, host_bytes)
    ]
    if with_buffers := [plan for plan in plans if plan.device_bytes <= vram_bytes]:
        return fastest(with_buffers)
    least_bytes = min(plan.device_bytes for plan in plans)
    raise OutOfMemory(
        f"no split fits {vram_bytes:,} bytes on the device with buffers for a share of {share}; "
        f"{least_bytes:,} bytes would do, or a smaller share"
    )
