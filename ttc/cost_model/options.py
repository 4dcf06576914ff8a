"""The ways to run a search on a machine: each placement of the weights with each memory policy, its
time and its bytes.

A step is `step_tokens` tokens of every branch, half way through the search. Its time is that of its
passes by the roofline (HELM, Eqs. 4.7-4.15), with what crosses the link in each pass beside the
layer that is computed meanwhile, and with what crosses once a step. Prefill and rating are not
counted: they are much the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf

from ttc.cost_model.device_profile import BUFFERS, DeviceProfile, LinkProfile
from ttc.cost_model.policies import POLICIES, Cache, Policy, Steps, Traffic
from ttc.cost_model.roofline import roofline_time, t_comm
from ttc.cost_model.split_search import ROUNDING
from ttc.cost_model.unit import Pass, Unit, held_bytes
from ttc.errors import OutOfMemory
from ttc.tree.branch import MOST_ROWS

PLACEMENTS = ("resident", "split", "streamed")
HOST_TOO_SMALL = "the host is too small"
STATES_AWAY = ("headwise", "capture")
"""The policies that keep recurrent states on the host, whatever room the device has."""
STATES_ALONE = Policy(lambda _: 0, "", lambda *_: Traffic(0))
"""Any policy for a model that keeps recurrent states alone."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a plan knows of a machine.

    compiled: the device as it runs models whose weights are all there. modules: the device with the
    model's own modules, which run where weights are placed. host: the host's processor. plain: the
    device with modules whose weights are not packed, as those that stream; None where it is like
    `modules`. device_bytes, host_bytes: what weights and KV may take together, None for no limit.
    kv_bytes: of KV, what a run counts on where its policy has no budget, or moves KV to the host.
    """

    compiled: DeviceProfile
    modules: DeviceProfile
    host: DeviceProfile
    link: LinkProfile
    plain: DeviceProfile | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    kv_bytes: float = inf


@dataclass(frozen=True)
class WeightLayout:
    """Where weights lie. number: k of a split, or how many of the first layers stay on the device
    when the others are streamed; None where all stay. host, device: the units that run there.
    streamed: how many of the last layers come over the link in every pass. device_bytes,
    host_bytes: of weights, buffers included."""

    placement: str
    device: Sequence[Unit]
    device_bytes: int
    host_bytes: int = 0
    number: int | None = None
    host: Sequence[Unit] = ()
    streamed: int = 0

    @property
    def blocks(self) -> list[Unit]:
        """The layers that run on the device."""
        return [unit for unit in self.device if unit.is_block]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to run a search. step_s: what a step of all problems under way takes; infinite for a
    way that is not possible, for the `reason`. problems: how many these are.

    number: see `WeightLayout`. weight_bytes: of the device's bytes, those of weights.
    device_bytes, host_bytes: what is used of each in the end; of a way that does not fit, what it
    needs at least. link_bytes: what crosses to the device in a step.
    """

    placement: str
    memory: str
    number: int | None = None
    problems: int = 1
    step_s: float = inf
    weight_bytes: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    link_bytes: int = 0
    reason: str = ""

    @property
    def feasible(self) -> bool:
        return not self.reason

    @property
    def problem_s(self) -> float:
        """What a step takes for each problem."""
        return self.step_s / self.problems


def options(
    units: Sequence[Unit],
    kv_heads: int,
    machine: Machine,
    search: Steps,
    placements: Sequence[str] = PLACEMENTS,
    number: int | None = None,
    problems: int | None = 1,
) -> list[Option]:
    """Every combination of a placement and a memory policy, in the order of their names.

    A split has the number of units on the host, and streaming the number of layers that stay, with
    which a step is fastest. placements, number: those that are asked about. problems: how many
    searches like this are under way, None for as many as a run would begin.
    """
    ways = list[Option]()
    for placement in placements:
        layouts = [
            layout
            for layout in _layouts(placement, units)
            if number is None or layout.number == number
        ]
        for memory in POLICIES:
            alike = [
                _with_problems(layout, memory, kv_heads, machine, search, problems)
                for layout in layouts
            ]
            none = Option(placement=placement, memory=memory, reason="too few layers")
            ways.append(_fastest(alike) if alike else none)
    return ways


def best(ways: Sequence[Option]) -> Option:
    """The fastest; of equals the first. Raises OutOfMemory with the bytes that would do where none
    is possible."""
    option = _fastest(ways)
    if option.feasible:
        return option
    raise OutOfMemory(
        f"no placement and memory policy fits: {option.placement} weights with "
        f"memory={option.memory} need least, {option.device_bytes:,} bytes on the device and "
        f"{option.host_bytes:,} on the host ({option.reason}); give larger budgets "
        "(memory.budget_gib, memory.host_budget_gib), fewer or shorter branches, or a smaller "
        "model"
    )


def _fastest(ways: Sequence[Option]) -> Option:
    """The fastest for each problem, of equals the first; where none is possible, the one that lacks
    least."""
    chosen = ways[0]
    for option in ways[1:]:
        faster = option.problem_s < chosen.problem_s * (1 - ROUNDING)
        if faster or (not chosen.feasible and _lack(option) < _lack(chosen)):
            chosen = option
    return chosen


def _lack(option: Option) -> tuple[bool, float]:
    """How ways that are not possible are ordered: first those that fit the device, by what they
    need on the host."""
    on_device = option.reason != HOST_TOO_SMALL
    return on_device, (option.device_bytes if on_device else option.host_bytes) or inf


# ---------------------------------------------------------------- where weights lie


def _layouts(placement: str, units: Sequence[Unit]) -> Iterator[WeightLayout]:
    """The ways to place the weights. Two buffers hold as much as two layers, so three are streamed
    at least."""
    blocks = [unit.param_bytes for unit in units if unit.is_block]
    layers, whole = len(blocks), sum(unit.param_bytes for unit in units)
    if placement == "resident":
        yield WeightLayout(placement, units, whole)
    elif placement == "split":
        for k in range(1, layers + 1):
            there = sum(unit.param_bytes for unit in units[k:])
            yield WeightLayout(placement, units[k:], there, held_bytes(units[:k]), k, units[:k])
    else:
        for kept in range(layers - BUFFERS):
            streamed = layers - kept
            away = sum(blocks) * streamed // layers
            there = whole - away + BUFFERS * max(blocks)
            yield WeightLayout(placement, units, there, away, kept, streamed=streamed)


def _begun(layout: WeightLayout, memory: str, machine: Machine, search: Steps) -> int:
    """How many problems a run begins by itself: as many as there are rows for, and as half of its
    memory has room for, by what the first step asks for (see
    `search.admission.ProblemAdmission`)."""
    tokens = search.prompt_tokens + 2 * search.branches * search.step_tokens
    states = kept_states(search)
    needed = sum(tokens * unit.kv_token_bytes + states * unit.state_bytes for unit in layout.device)
    has = machine.kv_bytes
    if memory == "resident" and machine.device_bytes is not None:
        has = machine.device_bytes - layout.device_bytes
    fitting = has / 2 // needed if needed else inf
    return int(max(1, min(MOST_ROWS // search.branches, fitting)))


def _with_problems(
    layout: WeightLayout,
    memory: str,
    kv_heads: int,
    machine: Machine,
    search: Steps,
    problems: int | None,
) -> Option:
    """The way with so many problems; with None, those that a run begins, or fewer where they cannot
    all be ended."""
    count = _begun(layout, memory, machine, search) if problems is None else problems
    option = _option(layout, memory, kv_heads, machine, search.times(count))
    while problems is None and count > 1 and not option.feasible:
        count //= 2
        option = _option(layout, memory, kv_heads, machine, search.times(count))
    return option


def _option(
    layout: WeightLayout, memory: str, kv_heads: int, machine: Machine, search: Steps
) -> Option:
    policy = POLICIES[memory]
    rates = _rates(layout, policy, machine)
    streamed_bytes = layout.host_bytes // layout.streamed if layout.streamed else 0
    attending = [block for block in layout.blocks if block.kv_elements]
    cache = Cache(attending, search, kv_heads, rates, machine.link, streamed_bytes)
    option = partial(
        Option,
        placement=layout.placement,
        memory=memory,
        number=layout.number,
        problems=search.problems,
    )
    if not attending:
        if memory == "capture" or not (
            memory == "resident" or any(unit.state_bytes for unit in layout.device)
        ):
            return option(reason="there is no KV")
        policy = STATES_ALONE
    elif memory == "capture" and cache.act_bytes >= cache.layer_bytes:
        both = f"{cache.act_bytes:,} bytes, KV {cache.layer_bytes:,}"
        return option(reason=f"an ACT block is no smaller ({both})")
    tokens, states = search.kv_tokens + search.branches * search.step_tokens, kept_states(search)
    host_bytes = layout.host_bytes + sum(
        tokens * unit.kv_token_bytes + states * unit.state_bytes for unit in layout.host
    )
    room = inf if machine.device_bytes is None else machine.device_bytes - layout.device_bytes
    least = policy.least(cache)
    state, at_once = sum(unit.state_bytes for unit in layout.device), search.branches
    away = (
        state and memory != "resident" and (memory in STATES_AWAY or room < states * state + least)
    )
    # those of segments' ends lie on the host, and come for as many branches as there is room for
    if away:
        at_once = at_once if room == inf else min(at_once, max(1, int((room - least) // state)))
        states = at_once
    fixed = layout.device_bytes + states * state
    room -= states * state
    if room < least:
        reason = "weights do not fit" if room < 0 else policy.lacks
        return option(reason=reason, device_bytes=ceil(fixed + least), host_bytes=host_bytes)
    traffic = policy.traffic(cache, room)
    if away:
        traffic = traffic._replace(
            rounds=max(traffic.rounds, ceil(search.branches / at_once)),
            step_bytes=traffic.step_bytes + search.branches * state,
            host_bytes=traffic.host_bytes + (search.branches + search.problems) * state,
        )
    option = partial(
        option,
        device_bytes=ceil(fixed + traffic.device_bytes),
        host_bytes=(host_bytes := ceil(host_bytes + traffic.host_bytes)),
    )
    if machine.host_bytes is not None and host_bytes > machine.host_bytes:
        return option(reason=HOST_TOO_SMALL)
    return option(
        step_s=_step_s(layout, traffic, rates, machine, search),
        weight_bytes=layout.device_bytes,
        link_bytes=_link_bytes(layout, traffic, search),
    )


def _rates(layout: WeightLayout, policy: Policy, machine: Machine) -> DeviceProfile:
    """The profile of what runs the layers."""
    if layout.streamed and machine.plain is not None:
        return machine.plain
    by_modules = policy.by_modules or layout.placement != "resident"
    return machine.modules if by_modules else machine.compiled


def kept_states(search: Steps) -> int:
    """Recurrent states of all branches before and after a step, and where they part."""
    return 2 * search.branches + search.problems


def _link_bytes(layout: WeightLayout, traffic: Traffic, search: Steps) -> int:
    """What crosses to the device in a step: KV, weights that stream, and the states of a split's
    host."""
    blocks = layout.blocks
    rows = ceil(search.branches / traffic.rounds)
    in_a_pass = sum(read.load_bytes for read in traffic.reads if read is not None)
    in_a_pass += sum(block.param_bytes for block in blocks[len(blocks) - layout.streamed :])
    in_a_pass += layout.host[-1].w_act(rows) if layout.host else 0
    return ceil(traffic.rounds * search.step_tokens * in_a_pass + traffic.step_bytes)


# ---------------------------------------------------------------- time


def _step_s(
    layout: WeightLayout, traffic: Traffic, rates: DeviceProfile, machine: Machine, search: Steps
) -> float:
    """The passes of all groups, and what crosses once a step as far as no group decodes
    meanwhile."""
    work = search.work_of(ceil(search.branches / traffic.rounds))
    group_s = search.step_tokens * _pass_s(layout, traffic, rates, machine, work) + rates.step_s
    bandwidth = machine.link.to_device_bandwidth
    ahead_s = min(traffic.ahead_bytes / bandwidth, (traffic.rounds - 1) * group_s)
    return traffic.rounds * group_s + max(0.0, traffic.step_bytes / bandwidth - ahead_s)


def _pass_s(
    layout: WeightLayout, traffic: Traffic, rates: DeviceProfile, machine: Machine, work: Pass
) -> float:
    blocks, link = layout.blocks, machine.link
    layers_s = roofline_time(blocks, rates, work) - rates.pass_overhead_s
    rest_s = roofline_time(layout.device, rates, work) - layers_s
    rest_s += work.rows * (rates.row_s + rates.logit_s * layout.device[-1].vocabulary)
    if layout.host:
        rest_s += roofline_time(layout.host, machine.host, work) + t_comm(
            layout.host[-1], link, work
        )
    reads = iter(traffic.reads)
    computing, loads = list[float](), list[float]()
    for n, block in enumerate(blocks):
        read = next(reads, None) if block.kv_elements else None
        weights = block.param_bytes if n >= len(blocks) - layout.streamed else 0
        # what is fetched is attended fetch by fetch; the rest of the layer follows the last
        fetches = 1 if read is None else read.fetches
        attending_s = fetch_s = 0.0
        if read is not None:
            attending_s = read.piecemeal_s(block, rates, work) + read.generate_s
            attending_s = attending_s / fetches + rates.fetch_s
            fetch_s = crossing_s(link, read.load_bytes / fetches)
        computing += [attending_s] * fetches
        computing[-1] += layers_s / len(blocks) + (rates.fetch_s if weights else 0.0)
        loads += [fetch_s] * fetches
        loads[-fetches] += crossing_s(link, weights)
    return pipelined(computing, loads, rest_s, traffic.buffers)


def crossing_s(link: LinkProfile, nbytes: float) -> float:
    """What one copy to the device takes; none takes nothing."""
    return link.to_device_latency_s + nbytes / link.to_device_bandwidth if nbytes else 0.0


def pipelined(
    computing: Sequence[float], loads: Sequence[float], rest_s: float = 0.0, buffers: int = BUFFERS
) -> float:
    """Seconds of one of many passes, in which each layer computes once what it loads is there.

    With two buffers, the load of the next layer that has one begins when a layer with a load begins
    to compute, after the last layer that of the first. With one, nothing is computed meanwhile.
    rest_s: what else is computed in a pass.
    """
    crossing = [layer for layer, seconds in enumerate(loads) if seconds]
    if not crossing or buffers < BUFFERS:
        return sum(computing) + sum(loads) + rest_s
    clock = begun = 0.0
    following = dict(zip(crossing, [*crossing[1:], crossing[0]], strict=True))
    arrives = loads[crossing[0]]
    for _ in range(2):  # the second pass is like all that follow
        begun = clock
        for layer, seconds in enumerate(computing):
            if layer in following:
                clock = max(clock, arrives)
                arrives = clock + loads[following[layer]]
            clock += seconds
        clock += rest_s
    return clock - begun
