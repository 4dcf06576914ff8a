"""HELM's cost model against this machine: the time of a decoding pass, predicted and measured."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
from transformers import LlamaConfig, Qwen3Config

from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc.calibration.measure_device import ProfileBeside
from ttc.calibration.pass_timer import PassTimer
from ttc.cost_model.device_profile import DeviceProfile
from ttc.cost_model.profile_file import read
from ttc.cost_model.roofline import roofline_time
from ttc.cost_model.unit import Pass
from ttc.errors import TTCError
from ttc.model.loading.partition import partition_units

CONTEXT = {"max_position_embeddings": 16384, "tie_word_embeddings": True}
SHAPES: dict[str, tuple[type, dict[str, int]]] = {
    "SmolLM2-360M": (
        LlamaConfig,
        {
            "hidden_size": 960,
            "intermediate_size": 2560,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "vocab_size": 49152,
        },
    ),
    "Qwen3-0.6B": (
        Qwen3Config,
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
        },
    ),
    "Llama-3.2-1B": (
        LlamaConfig,
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
    ),
}
"""Published shapes; their weights are random here."""

Cases = tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...]]
"""Numbers of layers; of branches and of the prompts that they stand on; and of a prompt's
tokens."""
ALONE: Cases = (2, 8), ((1, 1), (4, 1), (16, 1), (64, 1)), (128, 1024, 8192)
SEVERAL: Cases = (2, 8), ((16, 4), (64, 4), (64, 16)), (128, 1024)
"""Several problems at once."""
CASES = [*((name, ALONE) for name in SHAPES), ("Qwen3-0.6B", SEVERAL)]
QUICK: list[tuple[str, Cases]] = [("Qwen3-0.6B", ((2,), ((1, 1), (16, 1), (16, 4)), (128, 1024)))]
TURNS = 5
"""How often a case is predicted and measured, where that is done beside each other."""
OWN_TOKENS = 4
"""What a branch has of its own at the middle of the passes that are timed."""


def run(
    *,
    quick: Annotated[bool, "four cases"] = False,
    profile: Annotated[Path | None, "from experiments.profile; default: measure now"] = None,
    out: Path = RESULTS / "cost_model.json",
) -> None:
    """Measure and predict each case in bfloat16, print the table, and write the figures.

    profile: a file of `experiments.profile`, by which all cases are predicted. None to measure this
    machine beside each case.
    """
    dtype, name = torch.bfloat16, "cpu bfloat16"
    device = (
        ProfileBeside(torch.device("cpu"), dtype)
        if profile is None
        else read(profile).devices[name]
    )
    rows = [
        row
        for model, (depths, branches, contexts) in (QUICK if quick else CASES)
        for layers in depths
        for row in measured(model, layers, branches, contexts, device, dtype)
    ]
    record = provenance(
        f"python -m experiments.bench {' '.join(sys.argv[1:])}", model="random weights, bfloat16"
    )
    save(record | {"rows": rows}, out)
    print(table(rows))


def measured(
    model: str,
    layers: int,
    branches: tuple[tuple[int, int], ...],
    contexts: tuple[int, ...],
    device: ProfileBeside | DeviceProfile,
    dtype: torch.dtype,
) -> list[dict[str, Any]]:
    """One row per context and pair of branches and prompts, times in ms, memory's bandwidth in
    GB/s: of the turn whose error is the median. Turns in which the machine was too busy are left
    out; raises TTCError when these are most of them."""
    kind, shape = SHAPES[model]
    config = kind(**shape, **CONTEXT, num_hidden_layers=layers)
    units, timer = partition_units(config, dtype), PassTimer(config, torch.device("cpu"), dtype)
    rows = []
    for context in contexts:
        for count, prompts in branches:
            work = Pass(count, own_tokens=OWN_TOKENS, shared_tokens=context, prefixes=prompts)
            turns, busy = list[dict[str, float]](), None
            for _ in range(1 if isinstance(device, DeviceProfile) else TURNS):
                try:
                    if isinstance(device, DeviceProfile):
                        profile, pass_s = device, timer.seconds(count, context, prefixes=prompts)
                    else:
                        profile, pass_s = device.measure(
                            timer, count, context, units[1].group, prompts
                        )
                except TTCError as refused:
                    busy = refused
                    continue
                predicted_ms = roofline_time(units, profile, work) * 1e3
                turns.append(
                    {
                        "bandwidth": profile.bandwidth / 1e9,
                        "predicted_ms": predicted_ms,
                        "measured_ms": pass_s * 1e3,
                    }
                )
            if busy and len(turns) <= TURNS // 2:
                raise busy
            case: dict[str, Any] = {"model": model, "layers": layers, "context": context}
            case |= {"rows": count, "prompts": prompts}
            rows.append(case | sorted(turns, key=error)[len(turns) // 2])
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    return rows


def error(row: dict[str, Any]) -> float:
    """Predicted over measured, less 1."""
    return float(row["predicted_ms"] / row["measured_ms"] - 1)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: the cases, then the median and the largest error without their signs."""
    errors = [abs(error(row)) for row in rows]
    within = f"{sum(e <= 0.15 for e in errors)} of {len(rows)} within 15%"
    return "\n".join(
        [
            "| model | layers | context | rows | prompts | predicted, ms | measured, ms | error |",
            "|---|---|---|---|---|---|---|---|",
            *map(_line, rows),
            "",
            f"median error {statistics.median(errors):.1%}, largest {max(errors):.1%}; {within}",
        ]
    )


def _line(row: dict[str, Any]) -> str:
    return (
        f"| {row['model']} | {row['layers']} | {row['context']:,} | {row['rows']} | "
        f"{row.get('prompts', 1)} | {row['predicted_ms']:.2f} | {row['measured_ms']:.2f} | "
        f"{error(row):+.1%} |"
    )
