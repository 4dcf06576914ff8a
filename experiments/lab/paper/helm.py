"""HELM's running example (section 4.1.3) and the plans of its Table 6.5, beside what the paper
prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.roofline import roofline_time, t_comm
from ttc.cost_model.split_search import Generation, SplitPlan, split_plan, strategy_selector
from ttc.cost_model.unit import Unit

GB, GIB, MS = 10**9, 2**30, 1e-3

QWEN3: dict[str, dict[str, Any]] = {
    "Qwen3-4B": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "Qwen3-8B": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "Qwen3-14B": {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
    },
    "Qwen3-32B": {
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
    },
}
"""What differs between the published configurations. The smallest ties its output projection to the
embedding."""

CHAT = Generation(prompt_tokens=128, output_tokens=128)
"""The paper's request: section 5.4 and the caption of Table 6.1."""

RESERVED_BYTES = GIB
"""What the paper reserves for CUDA's context and the runtime: about 1 GB."""


def device(name: str, bandwidth: float) -> DeviceProfile:
    """A profile from one figure, as the paper has it in decoding: P_dec is set equal to M (section
    4.1.2)."""
    return DeviceProfile(name=name, bandwidth=bandwidth, flops={1: bandwidth})


CPU = device("Core i7-13700H", 45 * GB)
LINK = LinkProfile(
    to_device_bandwidth=16 * GB, to_host_bandwidth=16 * GB, to_device_latency_s=4.5e-6
)
"""B_link = 16 GB/s. The latency is the one with which T_comm is the paper's 5 microseconds."""


@dataclass(frozen=True)
class Machine:
    """A machine of section 5.1. delta_ms: its overhead per block (section 6.4.4). cpu: None where M
    is not given."""

    vram_bytes: int
    gpu: DeviceProfile
    delta_ms: float
    cpu: DeviceProfile | None = None


MACHINES = {
    "RTX 4060": Machine(8 * GIB, device("RTX 4060", 218 * GB), 0.14, CPU),
    "RTX 3090": Machine(24 * GIB, device("RTX 3090", 936 * GB), 0.79),
    "L40S": Machine(48 * GIB, device("L40S", 864 * GB), 1.64),
}
"""M of the RTX 4060 is what the paper measured; of the others it gives the data sheet's."""

PRINTED: tuple[tuple[str, str, int, float | None, float | None], ...] = (
    ("RTX 3090", "Qwen3-4B", 0, 48.2, 50.5),
    ("RTX 3090", "Qwen3-8B", 0, 51.0, 48.7),
    ("RTX 3090", "Qwen3-14B", 8, 143.5, 134.6),
    ("RTX 3090", "Qwen3-32B", 43, None, None),
    ("RTX 4060", "Qwen3-4B", 4, 80.1, 80.1),
    ("RTX 4060", "Qwen3-8B", 21, 263.5, 244.3),
    ("L40S", "Qwen3-4B", 0, 36.9, 36.9),
    ("L40S", "Qwen3-8B", 0, 39.9, 39.8),
    ("L40S", "Qwen3-14B", 0, 46.3, 49.8),
    ("L40S", "Qwen3-32B", 18, 908, 909),
)
"""Table 6.5: GPU, model, units on the CPU, predicted and measured ms. Section 6.4.2 has Qwen3-32B
on the RTX 3090."""


def qwen3(name: str) -> tuple[Unit, ...]:
    """The partition units of a model of `QWEN3`."""
    from transformers import Qwen3Config

    from ttc.model.loading.partition import partition_units

    return partition_units(
        Qwen3Config(
            **QWEN3[name],
            vocab_size=151936,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=name == "Qwen3-4B",
        )
    )


def rows() -> list[dict[str, Any]]:
    """One row per quantity of the example, per way to find its split, and per plan of Table 6.5;
    "part" says which."""
    units = {name: qwen3(name) for name in QWEN3}
    return [*_quantities(units["Qwen3-8B"]), *_splits(units["Qwen3-8B"]), *plan_rows(units)]


def _quantities(units: Sequence[Unit]) -> list[dict[str, Any]]:
    embedding, *blocks, output = units
    gpu, block = MACHINES["RTX 4060"].gpu, blocks[0]
    found = (
        ("W_param of a block, MB", block.w_param(1) / 1e6, 386),
        ("W_act, bytes", block.w_act(1), 8192),
        ("W_kv of a block, bytes per token", block.kv_token_bytes, 4),
        ("W_param / M of a block on the CPU, ms", block.w_param(1) / CPU.bandwidth / MS, 8.6),
        ("W_param / M of a block on the GPU, ms", block.w_param(1) / gpu.bandwidth / MS, 1.8),
        ("all blocks, GB", sum(b.param_bytes for b in blocks) / GB, 13.9),
        ("all blocks on the CPU, ms", roofline_time(blocks, CPU, CHAT.work("decode")) / MS, 310),
        ("blocks that fit 7 GB", 7 * GB // block.param_bytes, 18),
        (
            "embedding and output projection, GB",
            (embedding.param_bytes + output.param_bytes) / GB,
            1.2,
        ),
        ("T_comm, microseconds", t_comm(block, LINK, CHAT.work("decode")) / 1e-6, 5),
    )
    return [
        {"part": "example", "quantity": name, "ours": ours, "paper": paper}
        for name, ours, paper in found
    ]


def _splits(units: Sequence[Unit]) -> list[dict[str, Any]]:
    """k* of the running example, for what may be split and for what 7 GB may mean."""
    result = []
    for what, parts in (("36 blocks", units[1:-1]), ("38 units", units)):
        for size, vram_bytes in (("7 GB", 7 * GB), ("7 GiB", 7 * GIB)):
            plan = strategy_selector(parts, CPU, MACHINES["RTX 4060"].gpu, LINK, vram_bytes, CHAT)
            result.append(
                {
                    "part": "split",
                    "split": what,
                    "vram": size,
                    "k": plan.k,
                    "cpu_ms": plan.cpu_s / MS,
                    "gpu_ms": plan.gpu_s / MS,
                    "total_ms": plan.total_s / MS,
                }
            )
    return result


def plan_rows(units: dict[str, tuple[Unit, ...]]) -> list[dict[str, Any]]:
    return [
        _plan(gpu, model, units[model], k, predicted_ms, measured_ms)
        for gpu, model, k, predicted_ms, measured_ms in PRINTED
    ]


def _plan(
    gpu: str,
    model: str,
    units: Sequence[Unit],
    paper_k: int,
    predicted_ms: float | None,
    measured_ms: float | None,
) -> dict[str, Any]:
    """Our plan, what must be reserved for the paper's, and the times of the paper's.

    Where M of the CPU isn't given, the plan is searched with that of the RTX 4060's machine: any
    CPU is slower than its GPU, so the plan depends on what fits alone. No time is given then.
    """
    machine = MACHINES[gpu]
    cpu = machine.cpu or CPU

    def split(k: int) -> SplitPlan:
        return split_plan(k, units, cpu, machine.gpu, LINK, CHAT)

    ours = strategy_selector(
        units, cpu, machine.gpu, LINK, machine.vram_bytes - RESERVED_BYTES, CHAT
    )
    row: dict[str, Any] = {
        "part": "plan",
        "gpu": gpu,
        "model": model,
        "units": len(units),
        "k": ours.k,
        "paper_k": paper_k,
        "most_reserved_bytes": machine.vram_bytes - split(paper_k).device_bytes,
        "least_reserved_bytes": machine.vram_bytes - split(paper_k - 1).device_bytes
        if paper_k
        else None,
        "roofline_ms": None,
        "with_delta_ms": None,
        "paper_predicted_ms": predicted_ms,
        "paper_measured_ms": measured_ms,
        "delta_ms": machine.delta_ms,
        "implied_delta_ms": None,
    }
    if machine.cpu is not None or paper_k == 0:
        blocks = sum(unit.is_block for unit in units)
        row["roofline_ms"] = roofline_ms = split(paper_k).total_s / MS
        row["with_delta_ms"] = roofline_ms + blocks * machine.delta_ms
        if predicted_ms is not None:
            row["implied_delta_ms"] = (predicted_ms - roofline_ms) / blocks
    return row


NOTES = """\
- Figure 4.4's k* = 18 comes from 36 blocks and 7 GB: 18 blocks fit, and the embedding and the output projection are not
  counted. The text's k* = 21 comes from all 38 units and 7 GiB, with 16 blocks and the output projection on the GPU.
- The times in the text are not those of k* = 21. T_cpu = 154.8 ms is 18 blocks of 8.6 ms and T_gpu = 30.6 ms is 17 of
  1.8 ms, which makes 35 blocks. The sum of about 186 ms is that of Figure 4.4's split.
- The embedding and the output projection of Qwen3-8B are 1.24 GB each. The paper states 1.2 GB for both.
- W_kv is 4,096 bytes per token and block. Eq. 4.5 prints 4 for 2 × 8 × 128 × 2.
- A plan says how many units the CPU has, the embedding first. The paper reserves "about 1 GB" of the 4060's 8 GB, and
  says nothing of the others. Algorithm 1 gives all of the paper's plans if 0.88 to 1.07 GiB are reserved on the RTX
  4060, 1.66 to 2.25 GiB on the RTX 3090 and 2.96 to 3.86 GiB on the L40S.
- On each machine the GPU is the faster device, so the best plan is the one with most units on the GPU. How fast the CPU
  is plays no part. The paper gives its bandwidth for the RTX 4060's machine alone: "-" where a time needs another.
- P_dec is set equal to M, as in the paper. So attention is limited by P_dec
  wherever query heads share KV heads, as here.
- The predictions of Table 6.5 are not T_pred + N × delta with the paper's own figures. The last columns compare the
  delta that the paper states for a GPU with the delta that each prediction would need. On the L40S N × delta alone is
  more than each prediction of a model that lies on the GPU."""


def report(rows: list[dict[str, Any]]) -> str:
    """Markdown: the example's quantities, its splits, and the plans."""
    lines = [
        "# HELM: the running example (Qwen3-8B on an RTX 4060)",
        "",
        "| quantity | ours | paper |",
        "|---|---|---|",
    ]
    for row in rows:
        if row["part"] == "example":
            lines.append(
                f"| {row['quantity']} | {_number(row['ours'])} | {_number(row['paper'])} |"
            )
    lines += [
        "",
        "## The best split",
        "",
        "| what is split | VRAM | k* | T_cpu, ms | T_gpu, ms | T_plan, ms |",
    ]
    lines += ["|---|---|---|---|---|---|"]
    for row in rows:
        if row["part"] == "split":
            times = " | ".join(f"{row[name]:.1f}" for name in ("cpu_ms", "gpu_ms", "total_ms"))
            lines.append(f"| {row['split']} | {row['vram']} | {row['k']} | {times} |")
    lines += [
        "| paper, Figure 4.4 |  | 18 |  |  |  |",
        "| paper, text |  | 21 | 154.8 | 30.6 | 186 |",
    ]
    lines += ["", "## Table 6.5", ""]
    titles = ("GPU", "model", "plan, 1 GiB reserved", "paper's plan", "reserved for the paper's, GiB", "roofline, ms",
              "with delta, ms", "paper: predicted", "measured", "delta, ms", "the prediction's delta")  # fmt: skip
    lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [_line(row) for row in rows if row["part"] == "plan"]
    return "\n".join([*lines, "", NOTES])


def _line(row: dict[str, Any]) -> str:
    least, most = row["least_reserved_bytes"], row["most_reserved_bytes"] / GIB
    reserved = f"up to {most:.2f}" if least is None else f"{least / GIB:.2f} to {most:.2f}"
    cells = [
        row["gpu"],
        row["model"],
        plan_text(row["k"], row["units"]),
        plan_text(row["paper_k"], row["units"]),
        reserved,
    ]
    for name in ("roofline_ms", "with_delta_ms", "paper_predicted_ms", "paper_measured_ms"):
        cells.append("-" if row[name] is None else f"{row[name]:.1f}")
    cells.append(f"{row['delta_ms']:.2f}")
    cells.append("-" if row["implied_delta_ms"] is None else f"{row['implied_delta_ms']:.2f}")
    return f"| {' | '.join(cells)} |"


def plan_text(k: int, units: int) -> str:
    """A plan as Table 6.5 writes it, in units."""
    return f"cuda({units})" if k == 0 else f"cpu({k})→cuda({units - k})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.4g}"
