"""Table III of CAPTURE: KV only, ACT only, both 1:1, and both as Algorithm 1 and mini-batches have
it; measured here.

The paper's static rule gives ACT and KV blocks as much of the host's memory each, fills the ACT
blocks first, then the KV blocks. Two rows are not the paper's: the same split with each branch's
blocks in this proportion, and KV only with as much of it on the device as fits (`memory=paged`).

A random model of OPT's proportions decodes branches that share nothing, its weights and cache
streamed over a simulated link. The link is as fast as the point says, in units of what this machine
takes to generate keys and values: so the proportions of other machines can be set, and what counts
is how the times compare. Algorithm 1 goes by the times that the engine measures itself, as for
every user; those measured here set the link's speed and make the predictions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import OPTConfig, OPTForCausalLM

from experiments.runs.provenance import provenance
from ttc import Capture, Engine, Paged, Sampling, Streamed
from ttc.branch import Branch
from ttc.calibration.uncomputed import uncomputed
from ttc.cost_model.capture import CaptureTimes, Line, allocation, fit_line
from ttc.residency.offloading import Offloading
from ttc.step import Step

PRINTED = {
    "6.7B": (25.06, 31.49, 31.53),
    "13B": (13.90, 18.61, 19.06),
    "30B": (6.28, 8.68, 10.10),
    "66B": (2.96, 4.12, 4.63),
}
"""Table III: tokens a second of OPT with ACT only, the hybrid cache 1:1, and with allocation and
scheduling as well."""
CALIBRATION_GBPS = 100.0
AIM_OVER_KV, AIM_OVER_ACT = 2.19, 1.5
"""What the abstract says over FlexGen; what this project aims at over ACT only, where such a point
exists."""


@dataclass(frozen=True)
class Setting:
    """A model of OPT's proportions, and branches that share nothing."""

    hidden: int = 1024
    layers: int = 3
    branches: int = 28
    context: int = 4096
    block_tokens: int = 512
    mini_batch_tokens: int = 8192
    turns: int = 3

    @property
    def tokens(self) -> int:
        return self.branches * self.context


@dataclass(frozen=True)
class Point:
    """gen_to_load: T_kv_gen over T_load_kv of a token; it sets the speed of the link. act_gpu: the
    part of all tokens that the device has room for as ACT blocks."""

    name: str
    gen_to_load: float
    act_gpu: float

    @property
    def static_share(self) -> float:
        """The part of all tokens in ACT blocks by the static rule (section V-E): all that the
        device has room for, and two of three tokens of the host, whose ACT blocks and KV blocks
        take as much memory each (S_ACT = S_KV / 2)."""
        return self.act_gpu + (1 - self.act_gpu) * 2 / 3


KV, FITS, ACT = "KV only", "KV only, on the device as far as it fits", "ACT only"
STATIC, EVEN = "hybrid 1:1, ACT filled first", "hybrid 1:1, every branch alike"
CHOSEN = "hybrid, Algorithm 1 and mini-batches"
ARMS = (KV, FITS, ACT, STATIC, EVEN, CHOSEN)
POINTS = (
    Point("room on the device for most ACT blocks", 0.69, 0.62),
    Point("a small device, generating as slow as loading", 1.2, 0.12),
    Point("a small device and a fast link", 6.0, 0.12),
)


def main(arguments: argparse.Namespace) -> None:
    """Measure every point, print the tables and write the record."""
    setting = Setting()
    torch.set_num_threads(1)  # the other core copies
    torch.manual_seed(0)
    rows, calibrations, computing = list[dict[str, Any]](), list[CaptureTimes](), Computing(setting)
    computing.typical()  # a machine that was idle is slower at first
    points = [POINTS[number - 1] for number in arguments.points]
    for point in points:
        calibrations.append(computing.typical())
        at_point = times_at(point, calibrations[-1], setting)
        for arm in ARMS:
            rows.append(
                {
                    "point": point.name,
                    "arm": arm,
                    **measured(setting, point, arm, at_point, computing.times),
                }
            )
            print(f"{point.name}, {arm}: {rows[-1]['step_s']:.3f} s", file=sys.stderr, flush=True)
    times = mean(calibrations)
    record = provenance(
        f"python -m experiments.paper {' '.join(sys.argv[1:])}",
        model=f"OPT's proportions, hidden size {setting.hidden}, {setting.layers} layers, random weights, bfloat16",
        simulated="the link",
    )
    record |= {
        "setting": asdict(setting),
        "points": [asdict(point) for point in points],
        "calibrations": [asdict(each) for each in calibrations],
        "times": asdict(times),
        "rows": rows,
        "sweep": sweep(times, setting),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "capture.json").write_text(
        json.dumps(record, indent=1) + "\n", encoding="utf-8"
    )
    print(report(record))


# ---------------------------------------------------------------- the model of time


def times_at(point: Point, times: CaptureTimes, setting: Setting) -> CaptureTimes:
    """The times of a layer over the point's link."""
    return over_link(times, times.kv_gen.slope / point.gen_to_load, setting)


def over_link(times: CaptureTimes, load_s: float, setting: Setting) -> CaptureTimes:
    """The times of a layer over a link on which the KV of a token takes `load_s`."""
    token_bytes = 2 * 2 * setting.hidden
    weights = load_s * layer_weight_bytes(setting) / token_bytes
    return replace(times, load_w=weights, load_kv=Line(load_s), load_act=Line(load_s / 2))


def mean(calibrations: Sequence[CaptureTimes]) -> CaptureTimes:
    """What was measured before each of the points, together: a shared machine's speed drifts."""
    lines, count = [each.kv_gen for each in calibrations], len(calibrations)
    kv_gen = Line(sum(line.slope for line in lines) / count, r2=min(line.r2 for line in lines))
    return replace(
        calibrations[0],
        kv_gen=kv_gen,
        forward_s=sum(each.forward_s for each in calibrations) / count,
    )


def predicted_s(row: dict[str, Any], times: CaptureTimes, setting: Setting) -> float:
    """What a step takes by the model with the blocks that there are, over the link that there
    was."""
    at = over_link(times, 4 * setting.hidden / (row["link_gbps"] * 1e9), setting)
    return setting.layers * at.layer_s(row["kv_host"], row["act_host"], row["act_gpu"])


def layer_weight_bytes(setting: Setting) -> int:
    """Weights of a layer in 16 bits: four projections, an MLP of four times the width, biases and
    norms."""
    hidden = setting.hidden
    return 2 * (12 * hidden * hidden + 13 * hidden)


def sweep(times: CaptureTimes, setting: Setting) -> list[dict[str, float]]:
    """What the model says for links from slow to fast, with the small device of the second
    point."""
    rows, room = [], round(POINTS[1].act_gpu * setting.tokens)
    for gen_to_load in (0.25, 0.5, 0.65, 1.0, 1.2, 2.0, 4.0, 6.0, 10.0, 20.0):
        at = over_link(times, times.kv_gen.slope / gen_to_load, setting)
        act_gpu, act_host, kv_host = allocation(at, room, setting.tokens)
        chosen = at.layer_s(kv_host, act_host, act_gpu)
        rows.append(
            {
                "gen_to_load": gen_to_load,
                "act_share": (act_host + act_gpu) / setting.tokens,
                "over_kv": at.layer_s(setting.tokens, 0, 0) / chosen,
                "over_kv_on_device": at.layer_s(setting.tokens - room / 2, 0, 0) / chosen,
                "over_act": at.layer_s(0, setting.tokens - room, room) / chosen,
                "over_static": at.layer_s(
                    (setting.tokens - room) / 3, (setting.tokens - room) * 2 / 3, room
                )
                / chosen,
            }
        )
    return rows


# ---------------------------------------------------------------- measuring


def engine_of(setting: Setting, memory: Offloading, gbps: float | None = None) -> Engine:
    config = OPTConfig(
        vocab_size=512, hidden_size=setting.hidden, ffn_dim=4 * setting.hidden, word_embed_proj_dim=setting.hidden,
        num_attention_heads=setting.hidden // 64, num_hidden_layers=setting.layers, max_position_embeddings=8192,
    )  # fmt: skip
    model = OPTForCausalLM(config).bfloat16().eval()
    runner = Streamed(link_gbps=gbps).place(model, "cpu")
    engine = Engine(model, None, runner=runner, memory=memory, prefill_tokens=2048)
    engine.limits.eos_ids = frozenset()
    return engine


class Decoding:
    """Branches that decode together, a token of each in a step. The first step is not counted, and
    there may be one more than `steps`. act_first: as in `given_contexts`."""

    def __init__(
        self, engine: Engine, setting: Setting, steps: int, act_first: float | None = None
    ):
        self.engine, self.link = engine, engine.memory.link
        self.branches, self.batch = (
            given_contexts(engine, setting, act_first),
            engine.running_batch(),
        )
        self.batch.add(self.branches, Step(steps + 2), Sampling(temperature=0))
        self.batch.step()

    def step(self) -> tuple[float, float]:
        """The time of a step, and how much of it computing waited for copies."""
        start, waited_s = perf_counter(), self.link.exposed_s
        self.batch.step()
        return perf_counter() - start, self.link.exposed_s - waited_s

    def close(self) -> None:
        self.batch.close()
        self.engine.release(self.branches)


class Computing:
    """What a layer computes, measured as often as it is asked for: a shared machine's speed changes
    within seconds."""

    STEPS = 100
    """The most times that it can be asked for."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.counts = [setting.branches * part // 14 for part in (1, 2, 4)]
        ways = [(share, n) for n in self.counts for share in (0.0, 1.0)] + [(0.0, setting.branches)]
        self.decoding = {way: self._decoding(*way) for way in ways}

    def _decoding(self, act_share: float, branches: int) -> Decoding:
        setting = replace(self.setting, branches=branches)
        memory = Capture(
            act_share=act_share,
            block_tokens=setting.block_tokens,
            mini_batch_tokens=setting.mini_batch_tokens,
        )
        return Decoding(engine_of(setting, memory, CALIBRATION_GBPS), setting, self.STEPS)

    def times(self) -> CaptureTimes:
        """What a layer computes in a pass over KV blocks alone, and T_kv_gen: how much more with
        ACT blocks alone, a line through three numbers of branches. Waits for copies are left
        out."""
        setting, steps = (
            self.setting,
            {way: decoding.step() for way, decoding in self.decoding.items()},
        )
        layer_s = {
            way: (step_s - waited_s) / setting.layers for way, (step_s, waited_s) in steps.items()
        }
        points = [(n * setting.context, layer_s[1.0, n] - layer_s[0.0, n]) for n in self.counts]
        return CaptureTimes(
            kv_gen=fit_line(points, proportional=True),
            load_kv=Line(0.0),
            forward_s=layer_s[0.0, setting.branches],
        )

    def typical(self) -> CaptureTimes:
        """Of several turns the one with the median T_kv_gen."""
        turns = [self.times() for _ in range(self.setting.turns)]
        return sorted(turns, key=lambda times: times.kv_gen.slope)[len(turns) // 2]


def measured(
    setting: Setting,
    point: Point,
    arm: str,
    times: CaptureTimes,
    times_now: Callable[[], CaptureTimes],
) -> dict[str, Any]:
    """A step's time, what the model says, its bytes by cause, the blocks that there are, and the
    times by which the engine has chosen them (`engine_times`, None where there was no choice).

    times: what the link's speed goes by. times_now: measures what a layer computes at this moment.
    In each turn the model goes by that and a step is timed; the turn counts whose prediction is off
    by the median.
    """
    token_bytes = 2 * 2 * setting.hidden
    gbps = token_bytes / times.load_kv.slope / 1e9
    act_bytes = round(point.act_gpu * setting.tokens) * setting.layers * token_bytes // 2
    steps = 2 * setting.turns
    tail_bytes = setting.branches * (steps + 2) * setting.layers * token_bytes * 3 // 2
    kept = act_bytes + tail_bytes
    # the policy's buffers: at most half of it
    budget = kept + min(kept, 3 * setting.mini_batch_tokens * token_bytes)
    options: dict[str, Any] = {"budget_gib": budget / 2**30, "block_tokens": setting.block_tokens}
    memory: Offloading = Paged(**options)
    if arm != FITS:
        share = {KV: 0.0, ACT: 1.0, STATIC: 1.0, EVEN: point.static_share, CHOSEN: None}[arm]
        batches: dict[str, Any] = {
            "mini_batch_tokens": setting.mini_batch_tokens,
            "balanced": arm == CHOSEN,
        }
        memory = Capture(act_share=share, **batches, **options)
    engine = engine_of(setting, memory, gbps)
    act_first = point.static_share if arm == STATIC else None
    decoding, link = Decoding(engine, setting, steps, act_first), engine.memory.link
    chosen_by = engine.residency.times if isinstance(engine.residency, Capture) else None
    decoding.step()  # measuring may have left other weights in the buffers
    before, (act_gpu, act_host, kv_host) = dict(link.to_device_bytes), block_tokens(engine)
    row: dict[str, Any] = {
        "link_gbps": gbps,
        "device_bytes": budget,
        "engine_times": None if chosen_by is None else asdict(chosen_by),
        "act_gpu": act_gpu,
        "act_host": act_host,
        "kv_host": kv_host,
    }
    turns = list[dict[str, Any]]()
    for _ in range(setting.turns):
        predicted = predicted_s(row, times_now(), setting)
        decoding.step()  # what the link has brought ahead while other things were timed is used up
        step_s, waited_s = decoding.step()
        turns.append({"step_s": step_s, "waited_s": waited_s, "predicted_s": predicted})
    moved = {cause: (n - before.get(cause, 0)) / steps for cause, n in link.to_device_bytes.items()}
    decoding.close()
    bytes_per_step = {cause: n for cause, n in moved.items() if n}
    return {**sorted(turns, key=error)[len(turns) // 2], **row, "bytes_per_step": bytes_per_step}


def block_tokens(engine: Engine) -> tuple[int, int, int]:
    """The tokens of ACT blocks on the device, of ACT blocks on the host, and of KV blocks that have
    to cross."""
    if isinstance(engine.residency, Capture):
        return engine.residency.counts(kv for kv in engine.memory.live if not kv.being_written)
    return 0, 0, sum(kv.filled for kv in engine.memory.live if not kv.is_resident)


@torch.inference_mode()
def given_contexts(
    engine: Engine, setting: Setting, act_first: float | None = None
) -> list[Branch]:
    """Branches whose contexts are there without having been computed; no time depends on what they
    hold.

    act_first: the part of all tokens that become ACT blocks, those of the first branches."""
    prompts = [
        [7 * (n + 3 * b + 1) % 509 for n in range(setting.context + 1)]
        for b in range(setting.branches)
    ]
    policy = engine.residency
    with uncomputed(engine):
        if act_first is None or not isinstance(policy, Capture):
            return engine.roots(prompts).result()
        branches = list[Branch]()
        for prompt in prompts:
            policy.act_share = min(1.0, max(0.0, act_first * len(prompts) - len(branches)))
            branches += engine.roots([prompt]).result()
    return branches


# ---------------------------------------------------------------- the tables


def error(row: dict[str, Any]) -> float:
    """Predicted over measured, less 1."""
    return float(row["predicted_s"] / row["step_s"] - 1)


def table(record: dict[str, Any]) -> str:
    """Markdown: every point and arm, then what the model says of other links."""
    lines = [
        "| point | cache | step, ms | model, ms | error | over KV only | over KV on the device as "
        "far as it fits | over ACT only | over 1:1 | tokens: ACT on the device, ACT on the host, "
        "KV on the host | MB a step: weights, ACT, KV |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    by_point = {
        point["name"]: [r for r in record["rows"] if r["point"] == point["name"]]
        for point in record["points"]
    }
    for name, rows in by_point.items():
        times = {row["arm"]: row["step_s"] for row in rows}
        for row in rows:
            over = (
                f"{times[arm] / row['step_s']:.2f}x" if arm in times else ""
                for arm in (KV, FITS, ACT, EVEN)
            )
            moved = row["bytes_per_step"]
            mb = [
                moved.get("weights", 0),
                moved.get("act", 0),
                moved.get("kv", 0) + moved.get("stream", 0),
            ]
            cells = [
                name, row["arm"], f"{row['step_s'] * 1e3:.0f}", f"{row['predicted_s'] * 1e3:.0f}", f"{error(row):+.1%}",
                *over, f"{row['act_gpu']:,}, {row['act_host']:,}, {row['kv_host']:,}",
                ", ".join(f"{n / 1e6:.1f}" for n in mb),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    errors = sorted(abs(error(row)) for row in record["rows"])
    within = sum(e <= 0.10 for e in errors)
    lines += [
        "",
        f"The model's error is {median(errors):.1%} in the median and {errors[-1]:.1%} at most; "
        f"{within} of {len(errors)} are within 10%.",
        "",
        "What the model says of other links, with the small device:",
        "",
        "| generating over loading a token | part kept as ACT | over KV only "
        "| over KV only, on the device as far as it fits | over ACT only | over 1:1 |",
        "|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row['gen_to_load']:g} | {row['act_share']:.0%} | {row['over_kv']:.2f}x | "
            f"{row['over_kv_on_device']:.2f}x | {row['over_act']:.2f}x | {row['over_static']:.2f}x "
            "|"
            for row in record["sweep"]
        ),
    ]
    return "\n".join(lines)


def printed() -> str:
    """Table III of the paper."""
    lines = ["| OPT | ACT only | + hybrid | + allocation and scheduling |", "|---|---:|---:|---:|"]
    for model, (act, hybrid, scheduled) in PRINTED.items():
        lines.append(
            f"| {model} | {act:.2f} | {hybrid:.2f} ({hybrid / act:.2f}x) | {scheduled:.2f} "
            f"({scheduled / act:.2f}x) |"
        )
    return "\n".join(lines)


def report(record: dict[str, Any]) -> str:
    """Markdown: the paper's table, ours, and the lines that the model goes by."""
    return "\n".join(
        [
            "# CAPTURE, Table III",
            "",
            "The paper's, in tokens a second (RTX 4090, prompts of 1,920 tokens, a batch of 128):",
            "",
            printed(),
            "",
            "Ours (simulated link, random weights):",
            "",
            table(record),
            "",
            *aims(record),
            "",
            "What a layer computes, measured before each point (the model goes by the mean), and "
            "as the engine has",
            "measured it for Algorithm 1:",
            "",
            *(measured_line(times) for times in record["calibrations"]),
            *(
                f"the engine: {measured_line(row['engine_times'])}"
                for row in record["rows"]
                if row.get("engine_times") is not None
            ),
        ]
    )


def measured_line(times: dict[str, Any]) -> str:
    """What was measured before a point."""
    gen, forward_ms = times["kv_gen"], times["forward_s"] * 1e3
    return (
        f"T_kv_gen {gen['slope'] * 1e6:.2f} µs a token, R² {gen['r2']:.4f}; the rest of a layer "
        f"{forward_ms:.1f} ms"
    )


def aims(record: dict[str, Any]) -> list[str]:
    """Which aims the measured points reach."""
    found = []
    for point in record["points"]:
        times = {
            row["arm"]: row["step_s"] for row in record["rows"] if row["point"] == point["name"]
        }
        for arm, aim in ((KV, AIM_OVER_KV), (ACT, AIM_OVER_ACT)):
            if arm in times:
                ratio = times[arm] / times[CHOSEN]
                found.append(f"{point['name']}: {ratio:.2f}x over {arm} (aim {aim}x)")
    return found
