"""A decoding step on paper: bytes and operations as a real plan counts them, and the least time that
they take on three GPUs, for this engine, for a cascade of one prefix, and without sharing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.cli.output import show
from experiments.cli.tables import Table
from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc.attention.plan import Plan
from ttc.attention.plan_arrays import PlanArrays
from ttc.calibration.uncomputed import uncomputed
from ttc.engine import Engine
from ttc.model.loading.partition import partition_units
from ttc.step import Step


@dataclass(frozen=True)
class Peak:
    """What a GPU reaches at most. bandwidth: bytes a second of its memory. flops: a second, of
    products in bfloat16 that add up in float32, without sparsity."""

    name: str
    bandwidth: float
    flops: float
    source: str


PEAKS = (
    Peak("H100 SXM", 3.35e12, 989.4e12, "NVIDIA's data sheet of the H100"),
    Peak("RTX 4090", 1008e9, 165.2e12, "NVIDIA's Ada GPU architecture, appendix A"),
    Peak(
        "RTX 4060",
        272e9,
        24 * 512 * 2.46e9,
        "bandwidth, multiprocessors (24) and clock (2.46 GHz) from NVIDIA's page of it, and as many "
        "operations a clock as an RTX 4090's multiprocessor has (512)",
    ),
)
MODELS: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": False,
    },
}  # fmt: skip
CASES = ((16, 16, 512), (1, 8, 4096))
"""Problems, branches of each, and tokens of their prompts."""
OWN = 16
"""Tokens that each branch has written: half of a step of 32."""
WAYS = ("tree", "cascade of one prefix", "nothing shared")
ITEM = 2
"""Bytes of a number."""


@dataclass(frozen=True)
class Keys:
    """Of one layer and KV head: the keys that are read, the keys that rows attend, summed over all
    of them, and the partial results that are merged."""

    read: int
    attended: int
    parts: int = 0


def plan_of(problems: int, branches: int, tokens: int, own: int = OWN) -> Plan:
    """The plan of a step of branches of several problems, which no model has computed. own: the
    tokens of each branch's own that are attended, the new one among them; from 2 on."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=4, max_position_embeddings=8192, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    engine = Engine(LlamaForCausalLM(config).eval(), None)
    with uncomputed(engine):
        roots = engine.roots(
            [[(7 * n + problem) % 61 for n in range(tokens + 1)] for problem in range(problems)]
        ).result()
        batch = engine.running_batch()
        batch.add([b for root in roots for b in engine.fork(root, branches)], Step(2 * own))
        for _ in range(own - 1):
            batch.step()
    assert batch.plan is not None
    return batch.plan


def counted(plan: Plan, way: str, groups: int) -> Keys:
    """What a way to attend has to read for a plan. groups: query heads of a KV head."""
    rows = len(plan.positions)
    attended = sum(position + 1 for position in plan.positions)
    if way == "nothing shared":
        return Keys(attended, attended)
    if way == "cascade of one prefix":
        common = sum(e.length for e in plan.pieces if (e.rows.start, e.rows.stop) == (0, rows))
        return Keys(common + attended - rows * common, attended, 2 * rows if common else 0)
    runs = [(row, row + 1) for row in range(rows)]
    own = [plan.passes] * rows
    arrays = PlanArrays(plan.pieces, runs, plan.positions, groups, own)
    read = 0
    for _, _, first_piece, end_piece, _, own_row in arrays.tasks.tolist():
        read += int(arrays.pieces[first_piece:end_piece, 2].sum())
        read += plan.passes + 1 if own_row >= 0 else 0
    return Keys(read, attended, arrays.slots)


def step_of(keys: Keys, rows: int, shape: dict[str, Any]) -> dict[str, float]:
    """Bytes and operations of a step of a model, and the least seconds on each GPU: weights and
    attention one after the other, each as long as its bytes or its operations take."""
    units = partition_units(LlamaConfig(**shape), torch.bfloat16)
    layers, dim = shape["num_hidden_layers"], shape["head_dim"]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    weights = sum(unit.w_param(rows) for unit in units)
    products = sum(unit.f_proj(rows) for unit in units)
    # keys and values; partial results are float32, written and read
    kv = layers * (2 * keys.read * kv_heads * dim * ITEM + 2 * keys.parts * heads * (dim + 2) * 4)
    attending = layers * 4 * keys.attended * heads * dim
    found: dict[str, float] = {
        "weight_bytes": weights,
        "kv_bytes": kv,
        "weight_flops": products,
        "attention_flops": attending,
    }
    for peak in PEAKS:
        seconds = max(weights / peak.bandwidth, products / peak.flops)
        found[peak.name] = seconds + max(kv / peak.bandwidth, attending / peak.flops)
    return found


def rows_of(cases: Sequence[tuple[int, int, int]] = CASES) -> list[dict[str, Any]]:
    """A row for each model, case and way."""
    rows = []
    for problems, branches, tokens in cases:
        plan = plan_of(problems, branches, tokens)
        for model, shape in MODELS.items():
            groups = shape["num_attention_heads"] // shape["num_key_value_heads"]
            for way in WAYS:
                keys = counted(plan, way, groups)
                case = f"{problems} x {branches} on {tokens:,}"
                row = {"model": model, "case": case, "way": way} | asdict(keys)
                rows.append(row | step_of(keys, problems * branches, shape))
    return sorted(rows, key=lambda row: list(MODELS).index(row["model"]))


def run(*, out: Path = RESULTS / "roofline.json") -> None:
    """Count, write the record and print the table."""
    rows = rows_of()
    record = provenance(
        "python -m experiments.bench roofline",
        model=", ".join(MODELS),
        simulated="everything: on paper",
    )
    record |= {"peaks": [asdict(peak) for peak in PEAKS], "rows": rows}
    save(record, out)
    show(table(record))


def table(record: dict[str, Any]) -> str:
    """A line for each row, as Markdown."""
    names = [peak["name"] for peak in record["peaks"]]
    lines = [
        [
            row["model"],
            row["case"],
            row["way"],
            f"{row['weight_bytes'] / 1e9:.2f} GB",
            f"{row['kv_bytes'] / 1e9:.2f} GB",
            f"{row['weight_flops'] / 1e9:,.0f}",
            f"{row['attention_flops'] / 1e9:,.1f}",
            *(f"{row[name] * 1e3:.2f} ms" for name in names),
        ]
        for row in record["rows"]
    ]
    heads = ("model", "step", "way", "weights", "KV", "GFLOP of weights", "of attention", *names)
    return Table("", heads, lines).markdown()
