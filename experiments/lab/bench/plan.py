"""The plan against this machine: steps of every way to run a search, predicted and measured, where
all fits, where KV does not fit, and where weights do not fit.

Host, device and link have the proportions of HELM's smallest machine (see `placement.py`). The
device is this CPU, and a layer takes as much longer on the host as the paper's bandwidths say.
Weights are random; contexts are there without having been computed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, OPTConfig
from transformers.initialization import no_init_weights

from experiments.lab.bench.placement import DEVICE_GBPS, HOST_GBPS, LINK_GBPS
from experiments.runs.provenance import provenance
from ttc import Engine, Sampling
from ttc.calibration.measure_device import (
    Memory,
    profile_attention,
    profile_device,
    profile_link,
    profile_memory,
)
from ttc.calibration.uncomputed import uncomputed
from ttc.cost_model.device_profile import RATES, DeviceProfile, LinkProfile
from ttc.cost_model.options import Machine, Option, best
from ttc.cost_model.policies import Steps
from ttc.decoder_layers import decoder_layers
from ttc.model.partition import partition
from ttc.model.runner_choice import runner_for
from ttc.placement.auto import Planned
from ttc.placement.split import SplitRunner

DTYPE = torch.bfloat16
SLOWER = DEVICE_GBPS / HOST_GBPS
"""A layer takes so many times as long on the host."""
GREEDY = Sampling(temperature=0)
TURNS = 3
"""Steps of each way that are timed, after one that is not."""


@dataclass(frozen=True)
class Setting:
    """A model of this shape, and a search with it. weights, kv: the part of either for which the
    device has room; None for no limit."""

    name: str
    model: str
    config: Any
    search: Steps
    weights: float | None = None
    kv: float = 0.0


LLAMA = LlamaConfig(
    hidden_size=960, intermediate_size=2560, num_attention_heads=15, num_key_value_heads=5, num_hidden_layers=6,
    vocab_size=8192, tie_word_embeddings=True, max_position_embeddings=16384,
)  # fmt: skip
OPT = OPTConfig(
    hidden_size=1024, ffn_dim=4096, num_attention_heads=16, num_hidden_layers=6, vocab_size=8192,
    word_embed_proj_dim=1024, max_position_embeddings=16384,
)  # fmt: skip
SETTINGS = (
    Setting("everything fits", "6 layers of SmolLM2-360M's shape", LLAMA, Steps(1024, 128, 8, 16)),
    Setting(
        "KV does not fit",
        "6 layers of SmolLM2-360M's shape",
        LLAMA,
        Steps(2048, 512, 16, 16),
        1.0,
        0.5,
    ),
    Setting(
        "weights do not fit", "6 layers of OPT-350M's shape", OPT, Steps(2048, 256, 8, 16), 0.6, 0.3
    ),
)


def run(out: Path) -> None:
    """Measure, print the table, and write the figures."""
    torch.set_num_threads(1)  # the other core copies
    cpu = torch.device("cpu")
    memory, rows, profiles = (
        profile_memory(cpu),
        list[dict[str, Any]](),
        list[list[dict[str, Any]]](),
    )
    for setting in SETTINGS:
        found, devices = measured(setting, lambda: profile(cpu, memory))
        rows += found
        profiles.append([asdict(device) for device in devices])
        print(*found, sep="\n", file=sys.stderr, flush=True)
    record = provenance(
        f"python -m experiments.bench {' '.join(sys.argv[1:])}",
        model="random weights, bfloat16",
        simulated="the link, and how slow the host is",
    )
    record |= {"profiles": profiles, "rows": rows}
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(record))


def profile(cpu: torch.device, memory: Memory) -> list[DeviceProfile]:
    """This machine with compiled layers, with modules, and with modules whose weights are not
    packed."""
    measures = memory, profile_attention(cpu, DTYPE)
    found = [profile_device(cpu, DTYPE, runner, *measures) for runner in ("auto", "modules")]
    return [*found, profile_device(cpu, DTYPE, "modules", *measures, pack=False)]


def link_gbps(device: DeviceProfile) -> float:
    """The link's speed in 1e9 bytes a second, in the paper's proportion to the device's memory."""
    return device.bandwidth / 1e9 * LINK_GBPS / DEVICE_GBPS


def planned(
    setting: Setting,
    compiled: DeviceProfile,
    modules: DeviceProfile,
    plain: DeviceProfile | None = None,
    link: LinkProfile | None = None,
) -> Planned:
    """What the plan of a setting knows. link: None for one in the paper's proportion to `compiled`,
    without latency."""
    parts, search = partition(setting.config, DTYPE), setting.search
    units = parts.units
    gbps = link_gbps(compiled)
    link = link or LinkProfile(
        to_device_bandwidth=gbps * 1e9, to_host_bandwidth=gbps * 1e9, simulated=True
    )
    budget = None
    if setting.weights is not None:
        kv = sum(u.kv_token_bytes for u in units) * (
            search.kv_tokens + search.branches * search.step_tokens
        )
        budget = int(setting.weights * sum(u.param_bytes for u in units) + setting.kv * kv)
    text = setting.config
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    fast = compiled if parts.compiled else modules
    machine = Machine(
        compiled=fast,
        modules=modules,
        host=slower(fast),
        host_modules=slower(modules),
        link=link,
        plain=plain,
        device_bytes=budget,
        one_processor=True,
    )
    return Planned(units, heads, machine, search, gbps)


def slower(device: DeviceProfile) -> DeviceProfile:
    """The host's profile."""
    rates: dict[str, Any] = {
        name: {n: rate / SLOWER for n, rate in getattr(device, name).items()} for name in RATES
    }
    return replace(
        device, name="the host", bandwidth=device.bandwidth / SLOWER, l3_bandwidth=device.l3_bandwidth / SLOWER,
        block_overhead_s=device.block_overhead_s * SLOWER, pass_overhead_s=0, **rates,
        block_overheads={rows: seconds * SLOWER for rows, seconds in device.block_overheads.items()},
    )  # fmt: skip


def measured(
    setting: Setting, profile_now: Callable[[], list[DeviceProfile]]
) -> tuple[list[dict[str, Any]], list[DeviceProfile]]:
    """A row for each way, with the measured time of those that are possible; and the profile that
    the choice is made with.

    The machine's speed changes within minutes, so its profile and all ways take turns. Of each way
    the turn counts whose prediction is off by the median. The choice goes by the fastest turn of
    what the profile has, and is compared with the fastest of each way.
    """
    profiles, ways, turns = (
        [profile_now()],
        dict[int, Way](),
        dict[int, list[tuple[float, float]]](),
    )
    link = profile_link(torch.device("cpu"), link_gbps(profiles[0][0]))
    compiled, modules, plain = profiles[0]
    plan = planned(setting, compiled, modules, plain, link)
    first = plan.options()
    for turn in range(TURNS):
        if turn:
            profiles.append(profile_now())
        compiled, modules, plain = profiles[turn]
        now = replace(plan, machine=planned(setting, compiled, modules, plain, link).machine)
        for n, option in enumerate(first):
            if not option.feasible:
                continue
            if n not in ways:
                ways[n] = Way(setting, plan, option)
                ways[n].step()
            turns.setdefault(n, []).append(
                (now.predicted(option, setting.search).step_s, ways[n].step())
            )
    at_best = [fastest(found) for found in zip(*profiles, strict=True)]
    compiled, modules, plain = at_best
    plan = replace(plan, machine=planned(setting, compiled, modules, plain, link).machine)
    found = [
        plan.predicted(option, setting.search) if option.feasible else option for option in first
    ]
    chosen, rows = best(found), []
    for n, option in enumerate(found):
        row = {
            "setting": setting.name,
            "model": setting.model,
            "search": asdict(setting.search),
            **asdict(option),
        }
        row |= {"budget_bytes": plan.machine.device_bytes, "chosen": option is chosen}
        if option.feasible:
            step_s, measured_s = sorted(turns[n], key=lambda turn: turn[0] / turn[1])[TURNS // 2]
            fastest_s = min(seconds for _, seconds in turns[n])
            row |= {"step_s": step_s, "measured_s": measured_s, "fastest_s": fastest_s}
            row["crossed_bytes"] = ways[n].crossed_bytes
        else:
            row["step_s"] = None
        rows.append(row)
    return rows, at_best


def fastest(found: Sequence[DeviceProfile]) -> DeviceProfile:
    """The highest of each of the rates, and the median of each of the times, which are
    differences."""
    rates: dict[str, Any] = {
        name: {n: max(getattr(one, name)[n] for one in found) for n in getattr(found[0], name)}
        for name in RATES
    }
    names = [field.name for field in fields(DeviceProfile) if field.name.endswith("_s")]
    overheads = {
        n: median(one.block_overheads[n] for one in found) for n in found[0].block_overheads
    }
    times = {name: median(getattr(one, name) for one in found) for name in names}
    return replace(found[0], block_overheads=overheads, **rates, **times)


def engine_of(setting: Setting, plan: Planned, option: Option) -> Engine:
    """An engine that runs as `option` says, over random weights."""
    with no_init_weights():
        model = (
            AutoModelForCausalLM.from_config(setting.config, dtype=DTYPE)
            .eval()
            .requires_grad_(False)
        )
    random = torch.Generator().manual_seed(0)
    model.tie_weights()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.uniform_(-0.03, 0.03, generator=random)
        else:
            weight.data.fill_(1.0)
    placement, memory = plan.parts(option)
    runner = (
        runner_for(model, "auto", pack=True) if placement is None else placement.place(model, "cpu")
    )
    engine = Engine(model, None, runner=runner, memory=memory)
    # once the engine has seen how often a pass calls each layer
    if isinstance(runner, SplitRunner):
        if runner.host is not None:
            compiled = runner.host.compiled
            compiled.states = _slow(compiled.states)  # type: ignore[method-assign]
        for layer in decoder_layers(model)[: runner.k - 1] if runner.host is None else ():
            layer.forward = _slow(layer.forward)
    engine.limits.eos_ids = frozenset()
    return engine


def _slow(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that takes `SLOWER` times as long."""

    def slow(*args: Any, **kwargs: Any) -> Any:
        start, whole = time.perf_counter(), int(SLOWER)
        # again and again the same, as a processor that rests is slower afterwards
        for _ in range(whole):
            output = call(*args, **kwargs)
        time.sleep((SLOWER / whole - 1) * (time.perf_counter() - start))
        return output

    return slow


class Way:
    """An engine that runs as `option` says, with branches half way through the search.
    crossed_bytes: what came to the device in the last step."""

    def __init__(self, setting: Setting, plan: Planned, option: Option):
        self.engine, self.search, self.crossed_bytes = (
            engine_of(setting, plan, option),
            setting.search,
            0,
        )
        self.branches = half_way(self.engine, setting.search)

    def step(self) -> float:
        """The seconds of a step. The next one starts where this one did."""
        crossed = self.engine.memory.link.to_device_bytes
        children = [self.engine.fork(branch, 1)[0] for branch in self.branches]
        before, start = crossed.total(), time.perf_counter()
        self.engine.generate(children, self.search.step_tokens)
        seconds = time.perf_counter() - start
        self.engine.release(children)
        self.crossed_bytes = crossed.total() - before
        return seconds


@torch.inference_mode()
def half_way(engine: Engine, search: Steps) -> list[Any]:
    """Branches on a shared prompt as their earlier steps leave them, none of which were
    computed."""
    with uncomputed(engine):
        root = engine.root([7 * (n + 1) % 509 for n in range(search.prompt_tokens + 1)])
        branches = engine.fork(root, search.branches)
        engine.release([root])
        for first in range(0, search.frozen_tokens, search.step_tokens):
            engine.generate(
                branches, min(search.step_tokens, search.frozen_tokens - first), sampling=GREEDY
            )
    return branches


# ---------------------------------------------------------------- the table


def error(row: dict[str, Any]) -> float:
    """Predicted over measured, less 1."""
    return float(row["step_s"] / row["measured_s"] - 1)


def ratio(rows: Sequence[dict[str, Any]]) -> float:
    """What was chosen over the best that was measured, of one setting's rows."""
    possible = [row for row in rows if not row["reason"]]
    return float(
        next(row for row in possible if row["chosen"])["fastest_s"]
        / min(row["fastest_s"] for row in possible)
    )


def table(record: dict[str, Any]) -> str:
    """Markdown: every way that is possible in each setting, and how far the choice is from the
    best."""
    lines = [
        "| setting | placement | memory | predicted, ms | measured, ms | error |",
        "|---|---|---|---:|---:|---:|",
    ]
    notes = []
    for name in dict.fromkeys(row["setting"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["setting"] == name]
        for row in (row for row in rows if not row["reason"]):
            number = "" if row["number"] is None else f" {row['number']}"
            mark = "**" if row["chosen"] else ""
            cells = [
                name,
                f"{row['placement']}{number}",
                row["memory"],
                f"{row['step_s'] * 1e3:.0f}",
            ]
            cells += [f"{mark}{row['measured_s'] * 1e3:.0f}{mark}", f"{error(row):+.0%}"]
            lines.append(f"| {' | '.join(cells)} |")
        errors = sorted(abs(error(row)) for row in rows if not row["reason"])
        notes.append(
            f"- {name}: the choice takes {ratio(rows):.2f} times the best measured time. "
            f"Predictions are off by {median(errors):.0%} in the median and by {errors[-1]:.0%} at "
            f"most. Not possible: {_not_possible(rows)}."
        )
    return "\n".join([*lines, "", *notes])


def _not_possible(rows: Sequence[dict[str, Any]]) -> str:
    """What cannot run, by the reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            reasons.setdefault(row["reason"], []).append(f"{row['placement']} with {row['memory']}")
    return "; ".join(f"{', '.join(ways)} ({reason})" for reason, ways in reasons.items()) or "none"
