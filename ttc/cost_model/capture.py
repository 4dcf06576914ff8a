"""How much of a cache to keep as activations (ACT blocks) and how much as keys and values (KV
blocks): CAPTURE.

"Throughput-Oriented LLM Inference via KV-Activation Hybrid Caching with a Single GPU", section
IV-C. Counts are of unique blocks here: a block that many branches share is stored, moved and
regenerated once for all of them, where the paper counts every request's own. A block may be any
number of tokens; times and sizes are for one layer.

The paper's times leave two things out: ACT blocks of the host have to cross the link as well
(`load_act`), and a layer computes more than KV (`forward_s`). Both are 0 as the paper has it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from ttc.errors import InvalidInput


@dataclass(frozen=True)
class Line:
    """Seconds for a number of blocks: intercept + slope × n, and 0 for none. r2: how well it fits
    what was measured."""

    slope: float
    intercept: float = 0.0
    r2: float = 1.0

    def __call__(self, n: float) -> float:
        return self.intercept + self.slope * n if n > 0 else 0.0

    def blocks_in(self, seconds: float) -> float:
        """How many blocks take so long; infinitely many where a block takes no time."""
        left = seconds - self.intercept
        return max(0.0, left / self.slope if self.slope > 0 else inf if left >= 0 else 0.0)


def fit_line(points: Sequence[tuple[float, float]], proportional: bool = False) -> Line:
    """The line of least squares through (blocks, seconds); its slope and intercept are not below 0.
    proportional: with the intercept 0.

    Raises InvalidInput without two different numbers of blocks.
    """
    if len({n for n, _ in points}) < 2:
        raise InvalidInput(
            f"a line needs times of two numbers of blocks at least; there are {len(points)} points"
        )
    mean_n, mean_s = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((n - mean_n) ** 2 for n, _ in points)
    slope = max(0.0, sum((n - mean_n) * (s - mean_s) for n, s in points) / spread)
    intercept = mean_s - slope * mean_n
    if intercept < 0 or proportional:
        slope = sum(n * s for n, s in points) / sum(n * n for n, _ in points)
        intercept = 0.0
    total = sum((s - mean_s) ** 2 for _, s in points)
    rest = sum((s - intercept - slope * n) ** 2 for n, s in points)
    return Line(slope, intercept, 1.0 - rest / total if total > 0 else 1.0)


@dataclass(frozen=True, kw_only=True)
class CaptureTimes:
    """Table II: what a layer takes, in seconds.

    load_w: T_load_w, its weights over the link; 0 where they stay on the device. kv_gen: T_kv_gen,
    regenerating KV of ACT blocks. load_kv: T_load_kv, KV blocks over the link. load_act: ACT blocks
    over the link; the paper has no such term. forward_s: all else that the layer computes in a
    pass; the paper has no such term.
    """

    kv_gen: Line
    load_kv: Line
    load_w: float = 0.0
    load_act: Line = Line(0.0)
    forward_s: float = 0.0

    def t_pcie(self, kv_host: float, act_host: float = 0) -> float:
        """T_PCIe, Eq. 2, with the ACT blocks that cross."""
        return self.load_w + self.load_kv(kv_host) + self.load_act(act_host)

    def t_computation(self, act: float) -> float:
        """T_Computation, Eq. 3, of the ACT blocks of both tiers, with the rest of the layer."""
        return self.forward_s + self.kv_gen(act)

    def layer_s(self, kv_host: float, act_host: float, act_gpu: float) -> float:
        """What a layer takes when copies run beside computing: the longer of the two."""
        return max(self.t_pcie(kv_host, act_host), self.t_computation(act_host + act_gpu))


def hybrid_cache_allocation(times: CaptureTimes, act_gpu: float, m_host: int) -> tuple[int, int]:
    """Algorithm 1: (#ACT_Host, #KV_Host), the blocks of each kind that the host keeps.

    act_gpu: #ACT_GPU. m_host: how many blocks the host keeps, as a policy asks about those that
    there are; so S_ACT and S_KV are 1. Where ACT blocks cross (`load_act`), each of them moves both
    sides of the balance. Of all ways to fill the host no other has a shorter `layer_s`, and of
    those as short the smallest gap is chosen (Eq. 4), but for whole blocks.
    """
    load, crossing = times.load_kv.slope, times.load_act.slope
    if crossing > load:  # KV crosses faster, and is not generated
        return 0, m_host
    # an ACT block takes the device so much longer than the link
    gen = times.kv_gen.slope - crossing
    # T_budget, with what generating any number of blocks costs
    t_budget = (
        times.load_w - times.forward_s - times.kv_gen.intercept - times.kv_gen.slope * act_gpu
    )
    left = 0.0
    act_init = kv_init = 0
    if gen <= 0:  # no number of ACT blocks uses up T_budget
        left = t_budget
    elif t_budget >= 0:
        act_init = _whole(t_budget / gen, m_host)
    else:
        kv_init = _whole(Line(load).blocks_in(-t_budget), m_host)
    # #ACT + #KV = M_remaining and T_kv_gen(#ACT) = left + T_load_kv(#KV) + T_load_act(#ACT)
    m_remaining = m_host - act_init - kv_init
    both = load + gen
    share = max(0.0, (m_remaining * load + left) / both) if both > 0 else 0.0
    act_remain = _whole(share, m_remaining)
    return act_init + act_remain, kv_init + m_remaining - act_remain


def act_gpu_blocks(times: CaptureTimes, room: int, blocks: int) -> int:
    """#ACT_GPU: of `blocks` blocks as many as the device has room for, but no more than are
    regenerated while the others are loaded as KV blocks. The paper fills the room, and computing
    may then take longer than loading all."""
    slopes = times.kv_gen.slope + times.load_kv.slope
    left = times.load_w + times.load_kv.slope * blocks - times.forward_s - times.kv_gen.intercept
    useful = Line(slopes).blocks_in(left) if left > 0 else 0.0
    return _whole(useful, min(room, blocks))


class Allocation(NamedTuple):
    """Blocks of each kind and place."""

    act_gpu: int
    act_host: int
    kv_host: int


MIN_GAIN = 1.25
"""What Algorithm 1 has to gain by measured times before there are ACT blocks. Steps with both kinds
of blocks took up to 1.28 times what these times predict (SmolLM2's shape on 2 cores, a simulated
link)."""


def allocation(times: CaptureTimes, room: int, blocks: int, min_gain: float = 1.0) -> Allocation:
    """What becomes of `blocks` blocks where the device has room for `room` ACT blocks: Algorithm 1,
    or KV blocks alone unless a layer takes less than 1 / `min_gain` of their time, as what copies
    and generating cost besides (intercepts) may be more than is gained."""
    act_gpu = act_gpu_blocks(times, room, blocks)
    allocated = Allocation(act_gpu, *hybrid_cache_allocation(times, act_gpu, blocks - act_gpu))
    kv_only_s = times.layer_s(blocks, 0, 0)
    gains = (
        min_gain * times.layer_s(allocated.kv_host, allocated.act_host, allocated.act_gpu)
        < kv_only_s
    )
    return allocated if gains else Allocation(0, 0, blocks)


def _whole(blocks: float, limit: float) -> int:
    return int(min(blocks, limit))


def next_is_act(act_req: float, kv_req: float, act: float, kv: float) -> bool:
    """Eq. 5: whether the next block of a request with `act_req` and `kv_req` blocks is an ACT
    block, so that #ACT_req : #KV_req comes to act : kv. A tie goes to ACT."""
    return act > 0 and act_req * kv <= kv_req * act


def imbalance(
    act_mb: float, kv_mb: float, kv_gen: Callable[[float], float], load_kv: Callable[[float], float]
) -> float:
    """F_b, Eqs. 6 and 7: the larger of balance and 1 / balance of a mini-batch, 1 at best."""
    gen, load = kv_gen(act_mb), load_kv(kv_mb)
    if gen <= 0 or load <= 0:
        return 1.0 if gen == load else inf
    return max(gen / load, load / gen)


NEAR_LEAST = 1.05
"""How near a mini-batch stays to its least F_b while it takes more."""


def mini_batches(
    requests: Sequence[tuple[int, int]],
    limit: int,
    kv_gen: Callable[[float], float],
    load_kv: Callable[[float], float],
) -> list[list[int]]:
    """Dynamic mini-batch formation (section IV-C.3): which requests load together, greedily.

    requests: (#ACT, #KV) of each. limit: the blocks that a mini-batch has room for. It takes one
    request after the other: of those that fit the one that leaves F_b least, of equals the first.
    It ends where F_b was last within `NEAR_LEAST` of the least on the way, which makes it large as
    well as balanced. The paper takes requests in their order, each that lowers F_b; with small
    requests that ends at the first balance that comes by chance.
    """
    left = dict[tuple[int, int], deque[int]]()  # requests that are alike, in order
    batches = list[list[int]]()
    for index, request in enumerate(requests):
        if sum(request) > limit:
            raise InvalidInput(f"{request} ACT and KV blocks fit no mini-batch of {limit}")
        left.setdefault(request, deque()).append(index)
    while left:
        batch = list[tuple[int, int]]()
        kept = act = kv = 0
        least = inf
        counts = Counter[tuple[int, int]]()
        while True:
            untaken = [one for one, alike in left.items() if counts[one] < len(alike)]
            fitting = [one for one in untaken if act + kv + sum(one) <= limit]
            if not fitting:
                break
            ways = [(imbalance(act + one[0], kv + one[1], kv_gen, load_kv), one) for one in fitting]
            f_b, request = min(ways, key=lambda way: way[0])
            batch.append(request)
            counts[request] += 1
            act += request[0]
            kv += request[1]
            least = min(least, f_b)
            if f_b <= least * NEAR_LEAST:
                kept = len(batch)
        batches.append([left[request].popleft() for request in batch[:kept]])
        left = {request: alike for request, alike in left.items() if alike}
    return batches
