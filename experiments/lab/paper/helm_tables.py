"""What HELM's formulas say of its Tables 4.2 and 6.1-6.3, Figures 4.4, 6.1 and 6.2, and of eta_c
and eta_m."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import exp, inf
from pathlib import Path
from statistics import median
from typing import Any

from experiments.lab.paper.exhibit import Exhibit, Lines, Row
from experiments.lab.paper.helm import (
    CHAT,
    CPU,
    GB,
    GIB,
    LINK,
    MACHINES,
    MS,
    PRINTED,
    RESERVED_BYTES,
    device,
    qwen3,
)
from ttc.cost_model.device_profile import DeviceProfile
from ttc.cost_model.roofline import roofline_time
from ttc.cost_model.split_search import split_plan, strategy_selector
from ttc.cost_model.unit import Pass, Unit, held_bytes

RESULTS = Path(__file__).parents[1] / "results"

TABLE_6_1 = {
    ("RTX 4060", "Qwen3-4B"): (17.2, 6.7),
    ("RTX 4060", "Qwen3-8B"): (4.1, 0.8),
    ("RTX 3090", "Qwen3-4B"): (27.1, 26.6),
    ("RTX 3090", "Qwen3-8B"): (22.9, 23.3),
    ("RTX 3090", "Qwen3-14B"): (6.1, 1.3),
    ("RTX 3090", "Qwen3-32B"): (1.2, None),
    ("L40S", "Qwen3-4B"): (27.1, 23.9),
    ("L40S", "Qwen3-8B"): (25.1, 23.3),
    ("L40S", "Qwen3-14B"): (20.7, 21.2),
    ("L40S", "Qwen3-32B"): (1.1, 0.5),
}
"""Tokens a second of HELM and of Accelerate."""
TABLE_6_2 = {
    ("RTX 3090", "Qwen3-4B"): (21.1, 34.0, 53.6, 63.5),
    ("RTX 3090", "Qwen3-8B"): (22.6, 34.1, 55.4, 63.0),
    ("L40S", "Qwen3-4B"): (27.1, 43.7, 68.8, 81.5),
    ("L40S", "Qwen3-8B"): (25.1, 37.9, 61.5, 70.0),
    ("L40S", "Qwen3-14B"): (20.1, 25.1, 40.1, 46.6),
}
"""Tokens a second with 1, 2, 4 and 8 requests, where the model lies on the GPU."""
TENSOR_FLOPS = {"RTX 3090": 71e12, "L40S": 362e12}
"""Operations a second in 16 bits, by the data sheets. The paper gives P for decoding one row alone,
as P = M."""
TABLE_6_3 = {"Qwen3-4B": (17.2, 7.4), "Qwen3-8B": (4.1, 0.5)}
"""Tokens a second on the RTX 4060's machine with HELM's kernel for fp16 and with PyTorch's."""
KERNEL_BANDWIDTHS = {"HELM's kernel": 50 * GB, "PyTorch's": 3.7 * GB}
"""Section 4.1.5, on the RTX 4060's machine."""
FIGURE_6_1 = {
    ("RTX 4060", "Qwen3-4B"): (8, 1),
    ("RTX 4060", "Qwen3-8B"): (8, 0.125),
    ("RTX 3090", "Qwen3-4B"): (32, 8),
    ("RTX 3090", "Qwen3-8B"): (32, 8),
    ("RTX 3090", "Qwen3-14B"): (32, 0.125),
    ("RTX 3090", "Qwen3-32B"): (4, None),
    ("L40S", "Qwen3-4B"): (32, 32),
    ("L40S", "Qwen3-8B"): (32, 32),
    ("L40S", "Qwen3-14B"): (32, 32),
    ("L40S", "Qwen3-32B"): (8, None),
}
"""Longest output in K, by HELM and by the best of the others, as section 6.2 says."""
RAM_BYTES = {"RTX 4060": 16 * GB, "RTX 3090": 125 * GB, "L40S": 60 * GB}
WINDOW = 32_768
FIGURE_6_2 = {
    ("RTX 4060", "Qwen3-4B"): (60.7, 149),
    ("RTX 4060", "Qwen3-8B"): (248, 1209),
    ("RTX 3090", "Qwen3-14B"): (171, 783),
    ("L40S", "Qwen3-32B"): (909, 2060),
}
"""Median latency of a token in ms, HELM and Accelerate (section 6.3)."""
SIX_TOKENS = ((2, 10), (4, 30), (1, 5), (0, 2), (1, 8), (2, 12))
"""e_i and v_i of section 4.2.3.4."""
TABLE_4_2 = (
    (2, 1.000, 10.00),
    (4, 1.135, 31.35),
    (4, 1.185, 31.60),
    (4, 1.203, 31.64),
    (4, 1.253, 32.04),
    (4, 1.388, 33.66),
)
"""m, s and o after each of them."""
PLANS = {(gpu, model): k for gpu, model, k, _, _ in PRINTED}

units_of = cache(qwen3)


def overhead_ms(gpu: str, units: Sequence[Unit]) -> float:
    """N × delta of section 6.4.4."""
    return sum(unit.is_block for unit in units) * MACHINES[gpu].delta_ms


def helm_ms(gpu: str, model: str, cpu: DeviceProfile | None = None) -> float | None:
    """T_pred + N × delta of the paper's plan; None where the paper does not give the bandwidth of
    the CPU."""
    units, k, host = units_of(model), PLANS[gpu, model], cpu or MACHINES[gpu].cpu
    if k and host is None:
        return None
    plan = split_plan(k, units, host or CPU, MACHINES[gpu].gpu, LINK, CHAT)
    return plan.total_s / MS + overhead_ms(gpu, units)


def accelerate_ms(gpu: str, model: str) -> float | None:
    """The GPU computes all blocks, and weights that did not fit cross the link for each token,
    beside nothing.

    None where the paper does not give the bandwidth of the link.
    """
    units, machine = units_of(model), MACHINES[gpu]
    k = strategy_selector(
        units, CPU, machine.gpu, LINK, machine.vram_bytes - RESERVED_BYTES, CHAT
    ).k
    if k and machine.cpu is None:
        return None
    crossing_s = held_bytes(units[:k]) / LINK.to_device_bandwidth
    computing_s = roofline_time(units, machine.gpu, CHAT.work("decode"))
    return (crossing_s + computing_s) / MS + overhead_ms(gpu, units)


def _rate(ms: float | None) -> float | None:
    return None if ms is None else 1000 / ms


def throughput_rows() -> list[Row]:
    """Table 6.1: tokens a second."""
    return [
        {
            "GPU, model": f"{gpu}, {model}",
            "weights, GiB": held_bytes(units_of(model)) / GIB,
            "on the GPU": "all" if PLANS[gpu, model] == 0 else f"all but {PLANS[gpu, model]} units",
            "HELM": _rate(helm_ms(gpu, model)),
            "paper, HELM": helm,
            "Accelerate": _rate(accelerate_ms(gpu, model)),
            "paper, Accelerate": accelerate,
        }
        for (gpu, model), (helm, accelerate) in TABLE_6_1.items()
    ]


def latency_rows() -> list[Row]:
    """Figure 6.2: median latency of a token."""
    return [
        {
            "GPU, model": f"{gpu}, {model}",
            "HELM, ms": helm_ms(gpu, model),
            "paper, HELM": helm,
            "Accelerate, ms": accelerate_ms(gpu, model),
            "paper, Accelerate": accelerate,
        }
        for (gpu, model), (helm, accelerate) in FIGURE_6_2.items()
    ]


def batch_rows() -> list[Row]:
    """Table 6.2: tokens a second of 1 to 8 requests on the GPU."""
    rows = list[Row]()
    for (gpu, model), printed in TABLE_6_2.items():
        profile = replace(MACHINES[gpu].gpu, flops={1: TENSOR_FLOPS[gpu]})
        for batch, paper in zip((1, 2, 4, 8), printed, strict=True):
            work = Pass(batch, own_tokens=CHAT.prompt_tokens + CHAT.output_tokens // 2)
            ms = roofline_time(units_of(model), profile, work) / MS + overhead_ms(
                gpu, units_of(model)
            )
            rows.append(
                {
                    "GPU, model": f"{gpu}, {model}",
                    "batch": batch,
                    "tokens/s": 1000 * batch / ms,
                    "paper": paper,
                }
            )
    return rows


def kernel_rows() -> list[Row]:
    """Table 6.3: the CPU's layers at 50 GB/s and at 3.7 GB/s."""
    rows = list[Row]()
    for model, printed in TABLE_6_3.items():
        for (kernel, bandwidth), paper in zip(KERNEL_BANDWIDTHS.items(), printed, strict=True):
            ours = _rate(helm_ms("RTX 4060", model, device(kernel, bandwidth)))
            rows.append({"model": model, "kernel": kernel, "tokens/s": ours, "paper": paper})
    return rows


def length_rows() -> list[Row]:
    """Figure 6.1: the longest output that memory allows, in K, with KV in the host's memory and on
    the GPU alone."""
    rows = list[Row]()
    for (gpu, model), (helm, others) in FIGURE_6_1.items():
        units, k = units_of(model), PLANS[gpu, model]
        token_bytes = sum(unit.kv_token_bytes for unit in units)
        on_host = (RAM_BYTES[gpu] - (held_bytes(units[:k]) if k else 0)) / token_bytes
        on_gpu = (MACHINES[gpu].vram_bytes - RESERVED_BYTES - held_bytes(units)) / token_bytes
        rows.append(
            {
                "GPU, model": f"{gpu}, {model}",
                "KV on the host, K": min(WINDOW, on_host) / 1024,
                "paper, HELM": helm,
                "KV on the GPU, K": min(WINDOW, on_gpu) / 1024 if on_gpu > 0 else None,
                "paper, best other": others,
            }
        )
    return rows


def split_rows() -> list[Row]:
    """Figure 4.4: T_plan of every split of the 36 blocks; the paper's point is the k* that it
    draws, at its T_plan."""
    blocks, machine = units_of("Qwen3-8B")[1:-1], MACHINES["RTX 4060"]
    plans = [split_plan(k, blocks, CPU, machine.gpu, LINK, CHAT) for k in range(len(blocks) + 1)]
    return [
        {
            "k": plan.k,
            "T_plan, ms": plan.total_s / MS,
            "fits 7 GB": "yes" if plan.device_bytes <= 7 * GB else "no",
            "paper": 186.0 if plan.k == 18 else None,
        }
        for plan in plans
    ]


def streaming_rows() -> list[Row]:
    """Table 4.2: m, s and o of Eqs. 4.18-4.20 after each token, which is a page here; then o /
    s."""
    m, s, o = -inf, 0.0, 0.0
    rows = list[dict[str, Any]]()
    for n, ((e, v), paper) in enumerate(zip(SIX_TOKENS, TABLE_4_2, strict=True), 1):
        old, m = m, max(m, e)
        s = exp(old - m) * s + exp(e - m)
        o = exp(old - m) * o + exp(e - m) * v
        values = {
            "m": m,
            "paper, m": paper[0],
            "s": s,
            "paper, s": paper[1],
            "o": o,
            "paper, o": paper[2],
        }
        rows.append({"token": f"T{n}", **values})
    total = sum(exp(e) for e, _ in SIX_TOKENS)
    standard = sum(exp(e) / total * v for e, v in SIX_TOKENS)
    nothing = dict.fromkeys(rows[0], None)
    rows.append(
        nothing
        | {"token": f"o / s; standard attention: {standard:.2f}", "o": o / s, "paper, o": 24.2}
    )
    return rows


def equation_rows() -> list[Row]:
    """Eqs. 2.3, 2.6 and 2.7."""
    units = units_of("Qwen3-8B")
    block = next(unit for unit in units if unit.is_block)
    values = (
        ("Eq. 2.3, FLOP a byte of a prefill of 512", block.f_proj(512) / block.w_param(512), 512),
        ("Eq. 2.6, FLOP a byte of decoding", block.f_proj(1) / block.w_param(1), 1),
        ("Eq. 2.7, KV of a token, KiB", sum(unit.kv_token_bytes for unit in units) / 1024, 144),
    )
    return [{"quantity": name, "ours": ours, "paper": paper} for name, ours, paper in values]


def eta_rows() -> list[Row]:
    """eta_m that the paper's measured times imply, T_pred / (measured - N × delta); and both on
    this machine."""
    rows = list[Row]()
    for gpu, model, _, _, measured in PRINTED:
        ms = helm_ms(gpu, model)
        if ms is None or measured is None:
            continue
        overhead = overhead_ms(gpu, units_of(model))
        reached = (ms - overhead) / (measured - overhead) if measured > overhead else None
        rows.append({"where": f"paper: {gpu}, {model}", "eta": "eta_m", "value": reached})
    record: dict[str, Any] = json.loads((RESULTS / "cost_model.json").read_text(encoding="utf-8"))
    counts = sorted({row["rows"] for row in record["rows"]})
    for eta, count in (("eta_m", counts[0]), ("eta_c", counts[-1])):
        shares = [
            row["predicted_ms"] / row["measured_ms"]
            for row in record["rows"]
            if row["rows"] == count
        ]
        rows.append(
            {"where": f"this machine: passes of {count} rows", "eta": eta, "value": median(shares)}
        )
    return rows


EXHIBITS = (
    Exhibit("Equations 2.3, 2.6 and 2.7", "arithmetic intensity and KV of Qwen3-8B", equation_rows),
    Exhibit("Table 4.2", "streaming attention over six tokens", streaming_rows),
    Exhibit(
        "Figure 4.4",
        "every split of Qwen3-8B's 36 blocks",
        split_rows,
        Lines("k", ("T_plan, ms",), label="ms"),
    ),
    Exhibit(
        "Table 6.1",
        "tokens a second",
        throughput_rows,
        Lines(
            "GPU, model",
            ("HELM", "Accelerate"),
            ("paper, HELM", "paper, Accelerate"),
            log="y",
            label="tokens/s",
        ),
        "The roofline with the paper's delta. No value where it needs the bandwidth of a CPU or of "
        "a link that the paper does not give. With the paper's delta of 1.64 ms the L40S decodes "
        "more slowly than the paper measured.",
    ),
    Exhibit(
        "Table 6.2",
        "tokens a second by batch, models that lie on the GPU",
        batch_rows,
        Lines("batch", ("tokens/s",), by="GPU, model", log="xy", label="tokens/s"),
        "By the roofline a batch of 8 costs hardly more than one request, since weights are read "
        "once. The paper measures 2.3 to 3.1 times the throughput, and says that this is what the "
        "roofline predicts.",
    ),
    Exhibit(
        "Table 6.3",
        "HELM's kernel for fp16 on the CPU, RTX 4060",
        kernel_rows,
        Lines("kernel", ("tokens/s",), by="model", log="y", label="tokens/s"),
        "The bandwidths that section 4.1.5 states, 50 and 3.7 GB/s.",
    ),
    Exhibit(
        "Figure 6.1",
        "longest output that memory allows",
        length_rows,
        Lines(
            "GPU, model",
            ("KV on the host, K", "KV on the GPU, K"),
            ("paper, HELM", "paper, best other"),
            log="y",
            label="K tokens",
        ),
        "Memory divided by the KV of a token, at most the window of 32K. The paper's systems end "
        "earlier.",
    ),
    Exhibit(
        "Figure 6.2",
        "median latency of a token",
        latency_rows,
        Lines(
            "GPU, model",
            ("HELM, ms", "Accelerate, ms"),
            ("paper, HELM", "paper, Accelerate"),
            log="y",
            label="ms",
        ),
        "The figure's distributions need a GPU; its medians are in the text.",
    ),
    Exhibit(
        "eta_c and eta_m",
        "the shares of P and M that passes reach",
        eta_rows,
        note="The paper fits them and does not print them. `-`: its overhead alone is more than the measured time. On "
        "this machine they are what the cost model predicts with 1 for both, over what was "
        "measured.",
    ),
)
