"""What stands between the markers of each document, and how it is made from the figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.fit.train_verifier import card
from experiments.lab.bench import (
    aggregation,
    architectures,
    best_searches,
    cache,
    clients,
    cost_model,
    default_task,
    gpu_resources,
    growth,
    hybrid,
    kept,
    long,
    memory,
    placement,
    plan,
    prefix,
    quantized,
    remote,
    reward_model,
    roofline,
    scale,
    search_tables,
    serve,
    speculative,
    stored_profile,
    tools,
)
from experiments.lab.paper import capture
from experiments.lab.paper.rksc import plots
from experiments.lab.paper.rksc import tables as rksc
from experiments.lab.records import changed_modules, named, parts
from experiments.lab.report import docstrings, searches

RESULTS = Path(__file__).parents[1] / "results"

BESIDE = "experiments/lab/results"
"""Where pages lie that hold what a record says beyond docs/."""

Table = Callable[[dict[str, Any]], str]


def _part_of(table: Table, without: Sequence[str] = (), lines: str = "") -> Table:
    """A table without some columns, and of its lines those in which the pattern `lines` is
    found."""

    def part(record: dict[str, Any]) -> str:
        head, rule, *rows = table(record).splitlines()
        shown = [head, rule, *(row for row in rows if re.search(lines, row))]
        kept = [n for n, name in enumerate(head.split("|")) if name.strip() not in without]
        return "\n".join("|".join(row.split("|")[n] for n in kept) for row in shown)

    return part


def _beside_generate(record: dict[str, Any]) -> str:
    """The engine beside `generate` alone."""
    rows = [row for row in record["rows"] if row["arm"] in ("generate", "engine")]
    return prefix.short_table(record | {"rows": rows})


STEPS = (
    "entries",
    "against the first at equal length",
    "its time / engine's",
    "linear layers alone",
    "engine's time / theirs",
)
"""What only the page beside the records shows of steps."""

TABLES: dict[str, dict[str, tuple[str, Table]]] = {
    "README.md": {
        "prefix": ("prefix_short", prefix.table_and_plot),
        "default_task": ("default_task", default_task.table_and_plot),
    },
    "docs/benchmarks.md": {
        "prefix": ("prefix", _part_of(_beside_generate, ("processor",))),
        "quantized": ("quantized", _part_of(quantized.short_table, lines="Q4_K_M")),
        "search_steps": ("search", _part_of(search_tables.steps_table, STEPS)),
        "memory_time": (
            "memory",
            _part_of(memory.time_table, ("computing", "waiting for copies", "selecting")),
        ),
        "placement": ("placement", placement.table),
        "best_searches": ("best_searches", best_searches.accuracies),
    },
    f"{BESIDE}/quantized.md": {
        "quantized": ("quantized", quantized.table),
        "quantized_aims": ("quantized", quantized.aims_table),
        "quantized_avx2": ("quantized_avx2", quantized.table),
        "quantized_avx2_aims": ("quantized_avx2", quantized.aims_table),
        "quantized_amx": ("quantized_amx", quantized.table),
        "quantized_amx_aims": ("quantized_amx", quantized.aims_table),
    },
    f"{BESIDE}/gpu.md": {
        "gpu_resources": ("gpu_resources", gpu_resources.table),
        "roofline": ("roofline", roofline.table),
    },
    f"{BESIDE}/scale.md": {"scale": ("scale", scale.table)},
    f"{BESIDE}/search.md": {
        "search": ("search", search_tables.searches_table),
        "search_aims": ("search", search_tables.aims_table),
        "search_steps": ("search", search_tables.steps_table),
        "search_steps_amx": ("search_amx", search_tables.steps_table),
        "search_steps_no_tiles": ("search_no_tiles", search_tables.steps_table),
        "long": ("long", long.table),
        "long_avx2": ("long_avx2", long.table),
        "reward_model": ("reward_model", reward_model.table),
        "prefix": ("prefix", prefix.table),
        "prefix_avx2": ("prefix_avx2", prefix.avx2_table),
        "prefix_short_amx": ("prefix_short_amx", prefix.short_table),
        "hybrid": ("hybrid", hybrid.table),
        "kept": ("kept", kept.table),
        "growth": ("growth", growth.table),
        "growth_avx2": ("growth_avx2", growth.table),
    },
    f"{BESIDE}/cost_model.md": {
        "cost_model": ("cost_model", lambda record: cost_model.table(record["rows"])),
        "cost_model_amx": ("cost_model_amx", lambda record: cost_model.table(record["rows"])),
        "stored_profile": ("stored_profile", stored_profile.table),
        "plan": ("plan", plan.table),
    },
    f"{BESIDE}/memory.md": {
        "memory_bytes": ("memory", memory.bytes_table),
        "memory_sweep": ("memory", memory.sweep_table),
        "cache": ("cache", cache.table),
    },
    f"{BESIDE}/capture.md": {"capture": ("capture", capture.table)},
    f"{BESIDE}/searches.md": {
        "aggregation": ("aggregation", aggregation.table),
        "best_searches": ("best_searches", best_searches.differences),
        "searches": ("searches", searches.table),
    },
    "docs/searches.md": {
        "searches": ("searches", searches.plot_link),
    },
    "docs/models.md": {"architectures": ("architectures", architectures.table)},
    f"{BESIDE}/architectures.md": {"architectures": ("architectures", architectures.refusals)},
    "docs/serving.md": {"serve": ("serve", serve.table), "clients": ("clients", clients.table)},
    "docs/remote.md": {"remote": ("remote", remote.table)},
    "docs/tools.md": {"tools": ("tools", tools.table)},
    f"{BESIDE}/programs.md": {"searches_code": ("searches_code", searches.table)},
    f"{BESIDE}/speculative.md": {"speculative": ("speculative", speculative.table)},
    "docs/experiments.md": {},
    "docs/verifiers.md": {},
    "docs/memory.md": {},
    "docs/placement.md": {},
    "docs/evaluation.md": {},
    f"{BESIDE}/value_head.md": {
        "value_head": ("value_head", card.tables),
        "token_prm": ("token_prm", card.tables),
    },
    "docs/rksc.md": {
        "rksc_arms": (
            "rksc_arms",
            _part_of(rksc.arms, ("regime", "right", "skipped"), lines=r"^\| t=32"),
        ),
    },
    f"{BESIDE}/rksc.md": {
        **{f"rksc_{part}": (f"rksc_{part}", table) for part, table in rksc.TABLES.items()},
        "rksc_thresholds": ("rksc_answers", rksc.thresholds),
    },
}
"""What stands in each document between the markers of each name: (file of figures, how it becomes a
table)."""

LISTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/searches.md": {"searches": docstrings.searches, "budgets": docstrings.budgets},
    "docs/experiments.md": {
        "model": docstrings.model,
        "dataset": docstrings.dataset,
        "prompts": docstrings.prompts,
    },
    "docs/verifiers.md": {"verifiers": docstrings.verifiers},
    "docs/memory.md": {"policies": docstrings.policies, "memory": docstrings.memory},
    "docs/placement.md": {"placement": docstrings.placement, "auto": docstrings.auto},
    "docs/remote.md": {"backend": docstrings.backend},
    "docs/tools.md": {"tools": docstrings.tools},
    "docs/evaluation.md": {"thinking": docstrings.thinking},
}
"""The tables of each document that are made from docstrings, by their names."""


def fill(text: str, name: str, table: str) -> str:
    """Replace what stands between the markers of `name`, as "results:prefix"."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"there are no markers for {name}")
    return pattern.sub(lambda m: f"{m[1]}{table}\n{m[2]}", text)


def filled(document: str) -> str:
    """The document with its tables made anew; a table whose figures are missing stays as it is."""
    text = Path(document).read_text(encoding="utf-8")
    for name, listed in LISTS.get(document, {}).items():
        text = fill(text, f"docstrings:{name}", listed())
    for name, (file, table) in TABLES[document].items():
        figures = RESULTS / f"{file}.json"
        if figures.exists():
            record = json.loads(figures.read_text(encoding="utf-8"))
            part = record if "machine" in record else record.get(name.removeprefix(f"{file}_"))
            about = origin(part or record)
            if document == "README.md":
                about += changes_since(record)
            text = fill(text, f"results:{name}", f"{table(record)}\n\n{about}")
    return text


def origin(record: dict[str, Any]) -> str:
    """On which machine and at which commit a record was made, in a line; of a file of several
    records, each once."""
    lines = [f"{named(part['machine'])}, at {part['commit'][:7]}" for part in parts(record)]
    return f"Made on: {'; '.join(dict.fromkeys(lines))}."


def changes_since(record: dict[str, Any]) -> str:
    """A sentence that names the commits of the parts whose code has changed since; "" for none."""
    commits = [part["commit"][:7] for part in parts(record) if changed_modules(part)]
    if not commits:
        return ""
    return f" Some of the code that ran has changed since {' and '.join(dict.fromkeys(commits))}."


def write_all() -> None:
    for document in TABLES:
        Path(document).write_text(filled(document), encoding="utf-8")
    prefix.draw(RESULTS / "prefix_short.json", Path("docs/plots/prefix.png"))
    searches.draw(RESULTS / "searches.json", Path("docs/plots/searches.png"))
    if plots.draw(RESULTS, Path("docs/plots")):
        default_task.draw(RESULTS / "default_task.json", Path("docs/plots/default_task.png"))
        if (RESULTS / "best_searches.json").exists():
            best_searches.draw(RESULTS / "best_searches.json", Path("docs/plots/best_searches.png"))
    else:
        print("no plots were drawn: pip install matplotlib")
