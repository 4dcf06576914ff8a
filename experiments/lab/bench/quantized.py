"""Decoding with weights that stay as a .gguf file stores them, beside llama.cpp on the same file and
beside bfloat16 weights.

Each way is a process of its own, and they are asked in turn for each figure, so that all meet the
same state of the machine. A row is written as soon as it is measured, so that the command can be
stopped; when it is given again, it measures what is missing. Each row names its commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch

from experiments.lab.bench.dtypes import generate_dtype
from experiments.lab.bench.options import RESULTS, Peer
from experiments.lab.records import save
from experiments.runs.provenance import commit, provenance
from experiments.standins.random_gguf import MIXED, Shape, write_llama
from ttc.cost_model.bandwidth import best_of_five, read_bandwidth
from ttc.errors import InvalidInput, TTCError
from ttc.model.loading.default_model import smollm2_file

ONE_B = Shape(layers=16, width=2048, inner=8192, heads=32, kv_heads=8, vocab=128_256, context=4096)
"""The sizes of Llama-3.2-1B."""
EIGHT_B = Shape(
    layers=36,
    width=4096,
    inner=12_288,
    heads=32,
    kv_heads=8,
    vocab=151_936,
    context=4096,
    architecture="qwen3",
)
"""The sizes of Qwen3-8B."""
PREFIX = 512
TOKENS = 4
"""What a branch writes in a round of `branches`, after one token that is not timed."""
BEAM_STEPS, BEAM_TOKENS = 2, 4
"""Steps of a beam search 4 x 4, and tokens of each."""
FIGURES = ("prefill", "1", "4", "16", "64", "beam 4 x 4")
ROUNDS, LARGE_ROUNDS = 3, 1
PEER = Path(__file__).with_name("llama_steps.py")
Row = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """One model file. shape: None for the default model's own file. kinds: of its matrices.
    figures: what is measured."""

    shape: Shape | None
    kinds: str
    figures: tuple[str, ...] = FIGURES
    rounds: int = ROUNDS
    beside_bfloat16: bool = True

    def file(self, folder: Path) -> Path:
        """The file, written unless it is there."""
        if self.shape is None:
            return Path(smollm2_file())
        file = folder / f"{self.shape.architecture}-{self.shape.layers}-{self.kinds}.gguf"
        if not file.exists():
            unfinished = file.with_suffix(".new")
            write_llama(unfinished, self.kinds, self.shape)
            os.replace(unfinished, file)
        return file


EIGHT = Model(EIGHT_B, MIXED, rounds=LARGE_ROUNDS, beside_bfloat16=False)
MODELS = {
    "SmolLM2-135M, Q4_1": Model(None, "Q4_1"),
    "1B, Q4_K_M": Model(ONE_B, MIXED),
    "1B, Q8_0": Model(ONE_B, "Q8_0", beside_bfloat16=False),
    "8B, Q4_K_M": EIGHT,
    "8B, Q8_0": replace(EIGHT, kinds="Q8_0"),
}


class Way:
    """A process that holds a model and answers with the milliseconds of what it is asked for."""

    def __init__(self, *command: str):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self._answer()

    def ask(self, figure: str) -> Row:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"figure": figure} | settings()) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Row:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: Row = json.loads(line)
                return answer
        raise TTCError(f"a process that measures ended with {self.process.wait()}")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def settings() -> Row:
    return {
        "prefix": PREFIX,
        "tokens": TOKENS,
        "beam_steps": BEAM_STEPS,
        "beam_tokens": BEAM_TOKENS,
    }


def run(
    models: Annotated[Sequence[str], "by their names in the table; default: all"] = (),
    /,
    *,
    peer: Peer = None,
    files: Annotated[Path, "where random models are kept"] = Path("outputs/random_models"),
    out: Path = RESULTS / "quantized.json",
) -> None:
    """Measure what the record lacks of each model, write the figures as they come, and print a
    table.

    models: by their names in `MODELS`, None for all. peer: the Python of an environment with
    llama-cpp-python. files: where random models are written and stay.
    """
    if unknown := [name for name in models or () if name not in MODELS]:
        raise InvalidInput(f"the model {unknown[0]!r} is unknown; use some of {'; '.join(MODELS)}")
    files.mkdir(parents=True, exist_ok=True)
    record = provenance("python -m experiments.bench quantized", model="random weights and SmolLM2")
    record |= settings() | {"rows": _rows(out)}
    for name in models or MODELS:
        model = MODELS[name]
        known = {row["figure"] for row in record["rows"] if row["model"] == name}
        missing = [figure for figure in model.figures if figure not in known]
        if missing:
            _measure(name, model, missing, peer, files, record, out)
    print(table(record))


def _rows(out: Path) -> list[Row]:
    rows: list[Row] = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    return rows


def _measure(
    name: str,
    model: Model,
    figures: Sequence[str],
    peer: str | None,
    folder: Path,
    record: Row,
    out: Path,
) -> None:
    file = str(model.file(folder))
    own = [sys.executable, "-m", "experiments.bench", "quantized-way"]
    ways = {"stored": Way(*own, file), "int8": Way(*own, file, "--int8")}
    if model.beside_bfloat16:
        ways["bfloat16"] = Way(*own, file, "--bfloat16")
    if peer is not None:
        ways["llama.cpp"] = Way(peer, str(PEER), file)
    try:
        for figure in figures:
            answers: dict[str, list[Row]] = {way: [] for way in ways}
            for _ in range(model.rounds):
                for way, process in ways.items():
                    answers[way].append(process.ask(figure))
            row: Row = {"model": name, "figure": figure, "commit": commit()}
            row |= {"bytes_per_s": read_bandwidth(), "products_per_s": products_per_s()}
            row |= {key: ways["stored"].about[key] for key in ("weight_bytes", "products")}
            row["ms"] = {way: median(a["ms"] for a in found) for way, found in answers.items()}
            row["rounds_ms"] = {way: [a["ms"] for a in found] for way, found in answers.items()}
            row["peak_bytes"] = {way: found[-1]["peak_bytes"] for way, found in answers.items()}
            record["rows"].append(row)
            save(record, out)
            shown = ", ".join(f"{way} {ms:.0f} ms" for way, ms in row["ms"].items())
            print(f"{name}, {figure}: {shown}", flush=True)
    finally:
        for process in ways.values():
            process.end()


def products_per_s(size: int = 1024) -> float:
    """Multiplications a second of a large product, all threads, best of five, in the type that the
    processor is faster in: bfloat16 is emulated where it doesn't multiply it."""
    a, b = torch.ones(2, size, size, dtype=getattr(torch, generate_dtype()))
    return size**3 / best_of_five(lambda: a @ b)


def floor_ms(row: Row) -> float:
    """The least time of a step: the weights' bytes at the measured bandwidth, or the products at
    the measured peak."""
    figure = row["figure"]
    rows = {"prefill": PREFIX, "beam 4 x 4": 16}.get(figure) or int(figure)
    reading = row["weight_bytes"] / row["bytes_per_s"]
    multiplying = rows * row["products"] / row["products_per_s"]
    return max(reading, multiplying) * 1e3


# ---------------------------------------------------------------- tables


def table(record: Row) -> str:
    """The figures as a Markdown table: ms a step (of all branches), or of the prefill."""
    made = [
        "| model | branches | stored, ours | in 8 bits, ours | llama.cpp | of its time | in 8 bits "
        "| bfloat16, ours | faster than it | floor | memory, ours | llama.cpp |",
        "|---" * 12 + "|",
    ]
    for row in record["rows"]:
        ms, peak = row["ms"], row["peak_bytes"]
        cells = [row["model"], row["figure"], *(_ms(ms, way) for way in ("stored", "int8"))]
        cells += [_ms(ms, "llama.cpp"), *(_ratio(ms, w, "llama.cpp") for w in ("stored", "int8"))]
        cells += [_ms(ms, "bfloat16"), _ratio(ms, "bfloat16", "stored")]
        cells.append(f"{floor_ms(row):.0f} ms")
        cells += [
            f"{peak[way] / 1e9:.2f} GB" if way in peak else "" for way in ("stored", "llama.cpp")
        ]
        made.append(f"| {' | '.join(cells)} |")
    return "\n".join(made)


def short_table(record: Row) -> str:
    """The steps of 1 and of 16 branches alone."""
    ways = {
        "stored": "exact",
        "int8": "activations in 8 bits",
        "llama.cpp": "llama.cpp",
        "bfloat16": "unpacked to bfloat16",
    }
    made = [
        f"| model | branches | {' | '.join(ways.values())} | memory |",
        "|---" * (len(ways) + 3) + "|",
    ]
    for row in record["rows"]:
        if row["figure"] in ("1", "16"):
            cells = [row["model"], row["figure"], *(_ms(row["ms"], way) for way in ways)]
            made.append(f"| {' | '.join(cells)} | {row['peak_bytes']['stored'] / 1e9:.2f} GB |")
    return "\n".join(made)


def _ms(ms: Mapping[str, float], way: str) -> str:
    return f"{ms[way]:.0f} ms" if way in ms else ""


def _ratio(ms: Mapping[str, float], way: str, other: str) -> str:
    return f"{ms[way] / ms[other]:.2f}x" if {way, other} <= ms.keys() else ""


OURS = ("stored", "int8")
AIMS = [
    *((name, "1", own, "llama.cpp", 1.0) for name in MODELS for own in OURS),
    *((name, n, own, "llama.cpp", 0.5) for name in MODELS for n in ("16", "64") for own in OURS),
    ("1B, Q4_K_M", "1", "stored", "bfloat16", 1 / 2.5),
    ("1B, Q4_K_M", "16", "stored", "bfloat16", 1 / 1.5),
]
"""The most of another way's time that ours may take: (model, branches, ours, way, share)."""
MEMORY = ("8B, Q4_K_M", "16", 7e9)
"""The most bytes of memory that a search may take."""


def aims_table(record: Row) -> str:
    """What was aimed at, and whether it was reached."""
    rows = {(row["model"], row["figure"]): row for row in record["rows"]}
    made = ["| aim | measured | |", "|---|---|---|"]

    def add(aim: str, found: str, reached: bool) -> None:
        made.append(f"| {aim} | {found} | {'reached' if reached else 'not reached'} |")

    for name, figure, own, way, most in AIMS:
        ms = rows.get((name, figure), {}).get("ms", {})
        if {own, way} <= ms.keys():
            share = ms[own] / ms[way]
            by = "exact" if own == "stored" else "in 8 bits"
            aim = f"{name}, branches: {figure}, {by}; at most {most:.2f} of the time of {way}"
            add(aim, f"{share:.2f}", share <= most)
    name, figure, most_bytes = MEMORY
    if (name, figure) in rows:
        peak = rows[name, figure]["peak_bytes"]["stored"]
        aim = f"{name}, branches: {figure}; under {most_bytes / 1e9:.0f} GB of memory"
        add(aim, f"{peak / 1e9:.2f} GB", peak < most_bytes)
    return "\n".join(made)
