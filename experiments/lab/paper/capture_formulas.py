"""What CAPTURE's formulas say on the paper's machine: Table III, Figures 2, 3, 5 and 8-10, and the
ratio of KV to ACT.

An RTX 4090 behind PCIe 4.0, OPT in 16 bits. What the GPU reaches of its 165 TFLOP/s is found from
the paper's own column "Act-Only" of Table III, where nothing but computing takes time; all other
values follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

from experiments.lab.paper.capture import CHOSEN, EVEN, PRINTED, STATIC
from experiments.lab.paper.exhibit import Exhibit, Lines, Row
from ttc.cost_model.capture import Allocation, CaptureTimes, Line, allocation

RESULTS = Path(__file__).parents[1] / "results"
GIB = 2**30
FLOPS, BANDWIDTH, LINK = 165e12, 1008e9, 25e9
"""Of an RTX 4090: operations a second in 16 bits, and bytes a second of its memory and of PCIe 4.0
x16 as measured in HeadInfer's section 3.1. CAPTURE names the devices alone."""
DEVICE_BYTES = 24e9
MINI_BATCH_TOKENS, BUFFERS = 8192, 6
"""Three pairs of buffers of a mini-batch each (section IV-B)."""
BATCH, OUTPUT, PROMPT = 128, 128, 1920
"""Of Table III."""
PAPER_RATIO = {"6.7B": 1.0, "30B": 2.0, "66B": 1.78}
"""Section V-E: the best ratio of KV memory to ACT memory on the host."""


@dataclass(frozen=True)
class Opt:
    """An OPT model; its MLP is four times as wide as it."""

    layers: int
    hidden: int

    @property
    def weight_bytes(self) -> int:
        """Of a layer: four projections and an MLP, in 2 bytes."""
        return 24 * self.hidden**2

    @property
    def kv_bytes(self) -> int:
        """Of a token in a layer: keys and values, in 2 bytes. An ACT block takes half."""
        return 4 * self.hidden


MODELS = {"6.7B": Opt(32, 4096), "13B": Opt(40, 5120), "30B": Opt(48, 7168), "66B": Opt(64, 9216)}


def times_of(model: Opt, rate: float, batch: int, tokens: int) -> CaptureTimes:
    """A layer's times per token. rate: operations a second. OPT-6.7B's weights stay on the device
    (section V-A)."""
    resident = model is MODELS["6.7B"]
    per_row = max(24 * model.hidden**2 * batch / rate, model.weight_bytes / BANDWIDTH)
    return CaptureTimes(
        kv_gen=Line(4 * model.hidden**2 / rate),
        load_kv=Line(model.kv_bytes / LINK),
        load_act=Line(model.kv_bytes / 2 / LINK),
        load_w=0.0 if resident else model.weight_bytes / LINK,
        forward_s=per_row + tokens * model.kv_bytes / BANDWIDTH,
    )


def room(model: Opt) -> int:
    """Tokens whose ACT blocks the device has room for, beside weights and buffers: all of them, or
    two layers'."""
    weights = model.weight_bytes * (model.layers if model is MODELS["6.7B"] else 2)
    left = DEVICE_BYTES - weights - BUFFERS * MINI_BATCH_TOKENS * model.kv_bytes
    return max(0, int(left / (model.layers * model.kv_bytes / 2)))


def arms(model: Opt, rate: float, batch: int, tokens: int) -> dict[str, Allocation]:
    """The blocks of each way to keep so many tokens, in tokens."""
    held, times = min(room(model), tokens), times_of(model, rate, batch, tokens)
    left = tokens - held
    return {
        "KV only": Allocation(0, 0, tokens),
        "ACT only": Allocation(held, left, 0),
        "1:1": Allocation(held, left * 2 // 3, left - left * 2 // 3),
        "Algorithm 1": allocation(times, held, tokens),
    }


def layer_s(model: Opt, rate: float, batch: int, tokens: int, arm: str) -> float:
    act_gpu, act_host, kv_host = arms(model, rate, batch, tokens)[arm]
    return times_of(model, rate, batch, tokens).layer_s(kv_host, act_host, act_gpu)


def throughput(
    model: Opt, rate: float, arm: str, batch: int = BATCH, prompt: int = PROMPT
) -> float:
    """Tokens a second of a batch, prefill included: half of the output is there on average."""
    prefill_s = model.layers * batch * prompt * 24 * model.hidden**2 / rate
    step_s = model.layers * layer_s(model, rate, batch, batch * (prompt + OUTPUT // 2), arm)
    return batch * OUTPUT / (prefill_s + OUTPUT * step_s)


@cache
def rate_of(name: str) -> float:
    """Operations a second with which "Act-Only" is as fast as Table III says."""
    low, high = FLOPS / 100, FLOPS
    for _ in range(60):
        rate = (low + high) / 2
        slower = throughput(MODELS[name], rate, "ACT only") < PRINTED[name][0]
        low, high = (rate, high) if slower else (low, rate)
    return rate


def throughput_rows() -> list[Row]:
    """Table III in tokens a second; our own measurement has its gains over ACT only at its first
    point."""
    rows = list[Row]()
    for name, printed in PRINTED.items():
        for arm, paper in zip(("ACT only", "1:1", "Algorithm 1"), printed, strict=True):
            rows.append(
                {
                    "OPT": name,
                    "cache": arm,
                    "tokens/s": throughput(MODELS[name], rate_of(name), arm),
                    "paper": paper,
                    "of 165 TFLOP/s": rate_of(name) / FLOPS,
                }
            )
    return rows


def ratio_rows() -> list[Row]:
    """KV memory over ACT memory on the host by Algorithm 1: for OPT, and as the engine chose it in
    our own record."""
    rows = list[Row]()
    for name, model in MODELS.items():
        blocks = arms(model, rate_of(name), BATCH, BATCH * (PROMPT + OUTPUT // 2))["Algorithm 1"]
        rows.append(
            {"model": f"OPT-{name}", "KV : ACT": _ratio(blocks), "paper": PAPER_RATIO.get(name)}
        )
    for row in _record()["rows"]:
        if row["arm"] == CHOSEN:
            blocks = Allocation(row["act_gpu"], row["act_host"], row["kv_host"])
            rows.append(
                {
                    "model": f"this machine: {row['point']}",
                    "KV : ACT": _ratio(blocks),
                    "paper": None,
                }
            )
    return rows


def _ratio(blocks: Allocation) -> float | None:
    return 2 * blocks.kv_host / blocks.act_host if blocks.act_host else None


def _record() -> dict[str, Any]:
    """What `experiments.paper capture` has measured."""
    result: dict[str, Any] = json.loads((RESULTS / "capture.json").read_text(encoding="utf-8"))
    return result


def footprint_rows() -> list[Row]:
    """Figure 2b: KV of OPT-30B with 1,024 tokens; the text states the largest."""
    model = MODELS["30B"]
    sizes = {
        batch: batch * 1024 * model.layers * model.kv_bytes / GIB
        for batch in (1, 8, 16, 32, 64, 128)
    }
    return [
        {"batch": n, "KV, GiB": size, "paper": 168 if n == 128 else None}
        for n, size in sizes.items()
    ]


def recomputing_rows() -> list[Row]:
    """Figure 3: a step where a part of the tokens is computed again from token IDs, over one where
    none is.

    Computing again takes all operations of a layer for each of these tokens, after what else the
    layer computes.
    """
    rows = list[Row]()
    for name, context, paper in (("30B", 1024, 1.45), ("66B", 512, 1.31)):
        model, rate, tokens = MODELS[name], rate_of(name), 64 * context
        times = times_of(model, rate, 64, tokens)
        base = times.layer_s(tokens, 0, 0)
        for percent in (0, 10, 20, 30, 40, 50):
            again = tokens * percent / 100
            computing = times.forward_s + 24 * model.hidden**2 * again / rate
            loading = times.t_pcie(tokens - again)
            rows.append(
                {
                    "model": f"OPT-{name}",
                    "computed again, %": percent,
                    "beside copies": max(computing, loading) / base,
                    "after copies": (computing + loading) / base,
                    "paper": paper if percent == 20 else None,
                }
            )
    return rows


def breakdown_rows() -> list[Row]:
    """Figure 5: operations for a token's KV from its ID (a whole layer) and from its activation, of
    OPT-30B."""
    hidden = MODELS["30B"].hidden
    parts = {"KV": 4, "Q and output projection": 4, "FFN": 16}
    rows = [
        {
            "part": part,
            "Tok, MFLOP": n * hidden**2 / 1e6,
            "Act, MFLOP": n * hidden**2 / 1e6 if part == "KV" else 0.0,
        }
        for part, n in parts.items()
    ]
    less = 100 * (1 - 4 / 24)
    return [{**row, "less, %": None, "paper, less, %": None} for row in rows] + [
        {"part": "all", "Tok, MFLOP": 24 * hidden**2 / 1e6, "Act, MFLOP": 4 * hidden**2 / 1e6, "less, %": less,
         "paper, less, %": 78}
    ]  # fmt: skip


def gain_rows() -> list[Row]:
    """Figure 8: gain of Algorithm 1, the geometric mean over prompts of 512, 1,024 and 1,920
    tokens."""
    paper = {"6.7B": (2.05, 1.23), "66B": (2.33, 1.4)}
    rows = list[Row]()
    for name, model in MODELS.items():
        gains = {
            base: geometric_mean(
                throughput(model, rate_of(name), "Algorithm 1", prompt=prompt)
                / throughput(model, rate_of(name), base, prompt=prompt)
                for prompt in (512, 1024, PROMPT)
            )
            for base in ("KV only", "ACT only")
        }
        over_kv, over_act = paper.get(name, (None, None))
        rows.append(
            {
                "model": f"OPT-{name}",
                "over KV only": gains["KV only"],
                "paper, over FlexGen": over_kv,
                "over ACT only": gains["ACT only"],
                "paper, over ACT only": over_act,
            }
        )
    keys = ("over KV only", "over ACT only")
    means = {key: geometric_mean(row[key] for row in rows) for key in keys}
    return [*rows, {"model": "all", keys[0]: means[keys[0]], "paper, over FlexGen": 2.19, keys[1]: means[keys[1]],
                    "paper, over ACT only": 1.35}]  # fmt: skip


def traffic_rows() -> list[Row]:
    """Figure 9: KV and ACT over the link in a step of OPT-30B; the text states the largest
    ratios."""
    model, rate = MODELS["30B"], rate_of("30B")
    rows = list[Row]()
    for batch, paper in ((32, 1.27), (64, 1.38)):
        for context in (512, 1024, 1920):
            tokens = batch * context
            blocks = arms(model, rate, batch, tokens)["Algorithm 1"]
            moved = model.layers * model.kv_bytes * (blocks.kv_host + blocks.act_host / 2)
            kept = model.layers * model.kv_bytes * tokens
            rows.append(
                {
                    "batch": batch,
                    "context": context,
                    "KV only, GB": kept / 1e9,
                    "Algorithm 1, GB": moved / 1e9,
                    "less traffic": kept / moved if moved else None,
                    "paper, at most": paper if context == 1920 else None,
                }
            )
    return rows


def utilisation_rows() -> list[Row]:
    """Figure 10: the part of a step in which the GPU computes, OPT-30B, mean over prompts of 512
    and 1,024."""
    paper = {32: (8.2, 35.6), 128: (12.6, 78.2)}
    return [
        {
            "batch": batch,
            "KV only, %": _utilisation(batch, "KV only"),
            "paper, FlexGen": paper.get(batch, (None, None))[0],
            "Algorithm 1, %": _utilisation(batch, "Algorithm 1"),
            "paper, CAPTURE": paper.get(batch, (None, None))[1],
        }
        for batch in (32, 64, 128)
    ]


def _utilisation(batch: int, arm: str) -> float:
    model, rate = MODELS["30B"], rate_of("30B")

    def shares() -> Iterable[float]:
        for prompt in (512, 1024):
            tokens = batch * (prompt + OUTPUT // 2)
            blocks = arms(model, rate, batch, tokens)[arm]
            computing = times_of(model, rate, batch, tokens).t_computation(
                blocks.act_host + blocks.act_gpu
            )
            yield computing / layer_s(model, rate, batch, tokens, arm)

    return 100 * mean(shares())


def measured_rows() -> list[Row]:
    """Table III measured on this machine: gain over ACT only, beside the mean of the paper's
    models."""
    record = _record()
    hybrid, scheduled = (
        geometric_mean(row[n] / row[0] for row in PRINTED.values()) for n in (1, 2)
    )
    paper = {STATIC: hybrid, EVEN: hybrid, CHOSEN: scheduled}
    steps = {(row["point"], row["arm"]): row["step_s"] for row in record["rows"]}
    return [
        {
            "cache": arm,
            "point": point["name"],
            "gain over ACT only": steps[point["name"], "ACT only"] / steps[point["name"], arm],
            "paper": gain,
        }
        for point in record["points"]
        for arm, gain in paper.items()
        if (point["name"], arm) in steps
    ]


EXHIBITS = (
    Exhibit(
        "Table III by the formulas",
        "tokens a second on an RTX 4090",
        throughput_rows,
        Lines("OPT", ("tokens/s",), by="cache", log="y", label="tokens/s"),
        "The rate of the GPU is that with which ACT only comes out as printed.",
    ),
    Exhibit(
        "Table III as measured here",
        "gain over ACT only (simulated link, random weights)",
        measured_rows,
        Lines("cache", ("gain over ACT only",), by="point", label="times"),
        "The paper's values are the means of its four models.",
    ),
    Exhibit(
        "Section V-E",
        "memory of KV over memory of ACT on the host",
        ratio_rows,
        Lines("model", ("KV : ACT",), label="KV : ACT"),
        "`-`: no ACT block on the host, or no value in the paper. The paper gives 6.7B its 1:1 as "
        "near the best.",
    ),
    Exhibit(
        "Figure 2b",
        "KV of OPT-30B at 1,024 tokens",
        footprint_rows,
        Lines("batch", ("KV, GiB",), label="GiB"),
    ),
    Exhibit(
        "Figure 3",
        "tokens computed again from their IDs, batch 64",
        recomputing_rows,
        Lines(
            "computed again, %",
            ("beside copies", "after copies"),
            ("paper",),
            by="model",
            label="latency / baseline",
        ),
        "The paper's values lie between computing beside the copies and after them.",
    ),
    Exhibit(
        "Figure 5",
        "operations for a token's KV in a layer of OPT-30B",
        breakdown_rows,
        note="By operations alone; the paper measures time, attention included.",
    ),
    Exhibit(
        "Figure 8",
        "gain of Algorithm 1",
        gain_rows,
        Lines(
            "model",
            ("over KV only", "over ACT only"),
            ("paper, over FlexGen", "paper, over ACT only"),
            label="times",
        ),
        "KV only streams all weights here, where FlexGen keeps most of them on the GPU.",
    ),
    Exhibit("Figure 9", "KV and ACT over the link in a step, OPT-30B", traffic_rows),
    Exhibit(
        "Figure 10",
        "time in which the GPU computes, OPT-30B",
        utilisation_rows,
        Lines(
            "batch",
            ("KV only, %", "Algorithm 1, %"),
            ("paper, FlexGen", "paper, CAPTURE"),
            label="%",
        ),
    ),
)
