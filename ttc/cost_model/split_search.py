"""Which layers run on the host and which on the device: HELM's Algorithm 1.

The first k partition units run on the host, the others on the device. KV lies with its layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from typing import Literal, get_args

from ttc.checks import check_choice
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.dims import Positive
from ttc.cost_model.roofline import roofline_time, t_comm
from ttc.cost_model.unit import Pass, Unit, held_bytes
from ttc.errors import InvalidInput, OutOfMemory

Objective = Literal["decode", "prefill"]
ROUNDING = 1e-9
"""Times that differ by a smaller part than this are equal."""


@dataclass(frozen=True)
class Generation(Positive):
    """W = (S, T_out, B) of Algorithm 2: branches that share a prompt, and what each of them
    generates."""

    prompt_tokens: int
    output_tokens: int
    branches: int = 1

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV is kept in the end. The prompt's is kept once."""
        return self.prompt_tokens + self.branches * self.output_tokens

    def work(self, objective: str) -> Pass:
        """The pass whose time counts: of decoding the one half way, or the prompt's."""
        check_choice(objective, get_args(Objective), f"objective={objective!r} is unknown")
        if objective == "prefill":
            return Pass(branches=1, new_tokens=self.prompt_tokens)
        return Pass(
            self.branches, own_tokens=self.output_tokens // 2, shared_tokens=self.prompt_tokens
        )


@dataclass(frozen=True)
class SplitPlan:
    """The plan pi: the first `k` of all units on the host. Times of one pass, and bytes in the end.

    cpu_s, gpu_s, comm_s: T of the host's stage, of the device's stage, and T_comm.
    device_bytes: weights, recurrent states, and KV unless it is offloaded. host_bytes: the rest.
    """

    k: int
    units: int
    cpu_s: float
    gpu_s: float
    comm_s: float
    device_bytes: int
    host_bytes: int

    @property
    def total_s(self) -> float:
        """T_plan, Eq. 4.7."""
        return self.cpu_s + self.gpu_s + self.comm_s


def strategy_selector(  # noqa: PLR0913 - the variables of HELM's Algorithm 1
    units: Sequence[Unit],
    d_cpu: DeviceProfile,
    d_gpu: DeviceProfile,
    link: LinkProfile,
    vram_bytes: int,
    generation: Generation,
    objective: Objective = "decode",
    kv_offload: bool = True,
    host_bytes: int | None = None,
    largest_k: int | None = None,
) -> SplitPlan:
    """Algorithm 1: try each split and return the fastest that fits, the one with most on the device
    among equals.

    vram_bytes: VRAM_avail of Eq. 4.16. host_bytes: the memory of the host, None for enough.
    kv_offload: whether KV of the device's layers lies on the host, so that only their weights have
    to fit. largest_k: the most units that may be on the host, None for all. Raises OutOfMemory when
    no split fits, naming the bytes that would do; InvalidInput for an unknown objective.
    """
    tried = range((len(units) if largest_k is None else largest_k) + 1)
    plans = [
        split_plan(k, units, d_cpu, d_gpu, link, generation, objective, kv_offload) for k in tried
    ]
    room = inf if host_bytes is None else host_bytes
    fits = [plan for plan in plans if plan.device_bytes <= vram_bytes and plan.host_bytes <= room]
    if not fits:
        raise OutOfMemory(_nothing_fits(plans, vram_bytes, host_bytes))
    return reduce(
        lambda best, plan: plan if plan.total_s < best.total_s * (1 - ROUNDING) else best, fits
    )


def split_plan(
    k: int,
    units: Sequence[Unit],
    d_cpu: DeviceProfile,
    d_gpu: DeviceProfile,
    link: LinkProfile,
    generation: Generation,
    objective: Objective = "decode",
    kv_offload: bool = True,
) -> SplitPlan:
    """T_plan and the bytes of one split (Eqs. 4.7 and 4.16), whether it fits or not.

    KV that is offloaded is not charged for its way over the link; as in the paper, it counts as
    hidden. Raises InvalidInput unless k is from 0 (all on the device) to the number of units (all
    on the host).
    """
    if not 0 <= k <= len(units):
        raise InvalidInput(
            f"k={k} must be from 0 (all on the device) to {len(units)} (all {len(units)} units on "
            "the host)"
        )
    cpu = units[:k]
    gpu = units[k:]
    work = generation.work(objective)
    kv = [sum(unit.kv_token_bytes for unit in stage) * generation.kv_tokens for stage in (cpu, gpu)]
    # the states of the branches before and after a step, and where they part
    sequences = 2 * generation.branches + 1
    stays = [
        held_bytes(stage) + sequences * sum(unit.state_bytes for unit in stage)
        for stage in (cpu, gpu)
    ]
    return SplitPlan(
        k,
        len(units),
        cpu_s=roofline_time(cpu, d_cpu, work),
        gpu_s=roofline_time(gpu, d_gpu, work),
        comm_s=t_comm(cpu[-1], link, work) if cpu and gpu else 0.0,
        device_bytes=stays[1] + (0 if kv_offload else kv[1]),
        host_bytes=stays[0] + kv[0] + (kv[1] if kv_offload else 0),
    )


def _nothing_fits(plans: Sequence[SplitPlan], vram_bytes: int, host_bytes: int | None) -> str:
    """What is missing: the host's bytes for the split with most on the device that fits, and what
    would do."""
    fits = next((plan for plan in plans if plan.device_bytes <= max(vram_bytes, 0)), None)
    if fits is None:  # not where all units may lie on the host, which needs none
        return (
            f"no split fits {vram_bytes:,} bytes on the device: with {plans[-1].k} of "
            f"{plans[-1].units} units on the host, the most that are tried, the device needs "
            f"{plans[-1].device_bytes:,} bytes; give it these, or choose a smaller model"
        )
    return (
        f"no split fits {vram_bytes:,} bytes on the device and {host_bytes:,} on the host: with "
        f"{fits.k} of {fits.units} units on the host, the fewest that the device leaves, the host "
        f"needs {fits.host_bytes:,} bytes; give it these, or the device {plans[0].device_bytes:,} "
        f"bytes for {plans[0].units - plans[0].k} units, or choose a smaller model"
    )
