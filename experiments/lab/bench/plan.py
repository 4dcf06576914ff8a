"""The plan against this machine: steps of every way to run a search, predicted and measured, where
all fits, where KV does not fit, where weights do not fit, and with several problems at once.

Predictions are those that `memory=auto` makes: from a stored profile, with memory's bandwidth as it
is at the moment. Host, device and link have the proportions of HELM's smallest machine (see
`placement.py`). The device is this CPU, and a layer takes as much longer on the host as the paper's
bandwidths say. Weights are random; contexts are there without having been computed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, OPTConfig
from transformers.initialization import no_init_weights

from experiments.lab.bench.options import RESULTS
from experiments.lab.bench.placement import DEVICE_GBPS, HOST_GBPS, LINK_GBPS
from experiments.lab.records import save
from experiments.runs.provenance import commit, machine, provenance
from ttc import Engine
from ttc.calibration.measure_device import profile_link
from ttc.calibration.uncomputed import uncomputed
from ttc.cost_model.bandwidth import read_bandwidth
from ttc.cost_model.device_profile import RATES, DeviceProfile, LinkProfile
from ttc.cost_model.options import Machine, Option, best
from ttc.cost_model.policies import Steps
from ttc.cost_model.profile_file import BY_MODULES, PLAIN, Profile, read
from ttc.cost_model.read_now import at_bandwidth
from ttc.decoder_layers import decoder_layers
from ttc.errors import InvalidInput
from ttc.model.loading.partition import partition
from ttc.model.runner_choice import runner_for
from ttc.placement.auto import Planned
from ttc.placement.split import SplitRunner
from ttc.sampling import GREEDY

DTYPE = torch.bfloat16
SLOWER = DEVICE_GBPS / HOST_GBPS
"""A layer takes so many times as long on the host."""
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
    hidden_size=960,
    intermediate_size=2560,
    num_attention_heads=15,
    num_key_value_heads=5,
    num_hidden_layers=6,
    vocab_size=8192,
    tie_word_embeddings=True,
    max_position_embeddings=16384,
)
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
    Setting(
        "four problems, KV does not fit",
        "6 layers of SmolLM2-360M's shape",
        LLAMA,
        Steps(1024, 256, 16, 16, problems=4),
        1.0,
        0.5,
    ),
    Setting(
        "four problems, weights do not fit",
        "6 layers of OPT-350M's shape",
        OPT,
        Steps(1024, 256, 16, 16, problems=4),
        0.6,
        0.3,
    ),
)


def run(
    names: Annotated[Sequence[str], "settings by their names in the table; default: all"] = (),
    /,
    *,
    profile: Annotated[Path, "from experiments.profile"] = Path("profile.json"),
    out: Path = RESULTS / "plan.json",
) -> None:
    """Measure the settings of these names, all without any; print the table, and write the figures
    after each. The record's other settings stay if they are of the same profile and machine.

    profile: a file of `experiments.profile`, made with one thread. Raises InvalidInput for an
    unknown setting or a profile of another machine.
    """
    settings = {setting.name: setting for setting in SETTINGS}
    if unknown := [name for name in names if name not in settings]:
        raise InvalidInput(
            f"the setting {unknown[0]!r} is unknown; use some of {', '.join(map(repr, settings))}"
        )
    torch.set_num_threads(1)  # the other core copies
    stored = read(profile)
    devices = [asdict(device) for device in devices_of(stored)]
    rows = _before(out, devices)
    for name in names or settings:
        found = [row | {"commit": commit()} for row in measured(settings[name], stored)]
        rows = [row for row in rows if row["setting"] != name] + found
        rows.sort(key=lambda row: list(settings).index(row["setting"]))
        record = provenance(
            "python -m experiments.bench plan",
            model="random weights, bfloat16",
            simulated="the link, and how slow the host is",
        )
        record |= {"profile": devices, "rows": rows}
        save(record, out)
        print(table({"rows": found}), flush=True)


def _before(out: Path, devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that a record has already."""
    if not out.exists():
        return []
    record = json.loads(out.read_text(encoding="utf-8"))
    known = json.dumps(devices), machine()
    same = (json.dumps(record.get("profile")), record["machine"]) == known
    return list(record["rows"]) if same else []


def devices_of(profile: Profile) -> tuple[DeviceProfile, DeviceProfile, DeviceProfile]:
    """This machine with compiled layers, with modules, and with modules whose weights are not
    packed."""
    name = f"cpu {str(DTYPE).removeprefix('torch.')}"
    device = profile.device
    return device(name), device(name + BY_MODULES), device(name + PLAIN)


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
        link=link,
        plain=plain,
        device_bytes=budget,
    )
    return Planned(units, heads, machine, search, gbps)


def slower(device: DeviceProfile) -> DeviceProfile:
    """The host's profile."""
    rates: dict[str, Any] = {
        name: {n: rate / SLOWER for n, rate in getattr(device, name).items()} for name in RATES
    }
    return replace(
        device,
        name="the host",
        bandwidth=device.bandwidth / SLOWER,
        l3_bandwidth=device.l3_bandwidth / SLOWER,
        block_overhead_s=device.block_overhead_s * SLOWER,
        pass_overhead_s=0,
        **rates,
        block_overheads={n: seconds * SLOWER for n, seconds in device.block_overheads.items()},
        head_s={n: seconds * SLOWER for n, seconds in device.head_s.items()},
    )


def measured(setting: Setting, stored: Profile) -> list[dict[str, Any]]:
    """A row for each way, with the measured time of those that are possible.

    The machine's speed changes within minutes, so all ways take turns, and memory's bandwidth is
    read at the beginning of each. Of each way the turn counts whose prediction is off by the
    median. The choice is made once at the beginning, as a run does, and is compared with the
    fastest turn of each way.
    """

    def devices_now() -> tuple[DeviceProfile, DeviceProfile, DeviceProfile]:
        return devices_of(at_bandwidth(stored, read_bandwidth()))

    devices = devices_now()
    link = profile_link(torch.device("cpu"), link_gbps(devices[0]))
    plan = planned(setting, *devices, link)
    found = plan.options()
    chosen, possible = best(found), [option for option in found if option.feasible]
    ways = [Way(setting, plan, option) for option in possible]
    turns: list[list[tuple[float, float]]] = [[] for _ in ways]
    for _ in range(TURNS):
        now = replace(plan, machine=planned(setting, *devices_now(), link).machine)
        for option, way, times in zip(possible, ways, turns, strict=True):
            times.append((now.predicted(option, setting.search).step_s, way.step()))
    timed = dict(zip(map(id, possible), zip(ways, turns, strict=True), strict=True))
    rows = []
    for option in found:
        row = {
            "setting": setting.name,
            "model": setting.model,
            "search": asdict(setting.search),
            **asdict(option),
            "budget_bytes": plan.machine.device_bytes,
            "chosen": option is chosen,
        }
        if option.feasible:
            way, times = timed[id(option)]
            step_s, measured_s = sorted(times, key=lambda turn: turn[0] / turn[1])[TURNS // 2]
            fastest_s = min(seconds for _, seconds in times)
            row |= {"step_s": step_s, "measured_s": measured_s, "fastest_s": fastest_s}
            row["crossed_bytes"] = way.crossed_bytes
        else:
            row["step_s"] = None
        rows.append(row)
    return rows


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
        self.step()  # not timed

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
    """Branches on each problem's prompt as their earlier steps leave them, none of which were
    computed."""
    prompts = [
        [(7 * (n + 1) + first) % 509 for n in range(search.prompt_tokens + 1)]
        for first in range(search.problems)
    ]
    of_each = search.branches // search.problems
    with uncomputed(engine):
        roots = engine.roots(prompts).result()
        branches = [branch for root in roots for branch in engine.fork(root, of_each)]
        engine.release(roots)
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
