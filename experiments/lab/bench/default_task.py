"""Searches on the default task at about one token budget: the five commands of the README's table,
run one by one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import experiments.runs.problem_loop  # noqa: F401  the record names the code that a run uses
from experiments.eval.compare.show import draw as accuracy_against_compute
from experiments.lab.bench.dtypes import default_dtype
from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.provenance import provenance

SEARCHES = {
    "greedy": ("none", "search=greedy verifier=none search.max_tokens=64"),
    "self-consistency, n=16": (
        "none",
        "search=self_consistency verifier=none search.n=16 search.max_tokens=64",
    ),
    "best-of-16": ("arithmetic", "search=best_of_n search.n=16 search.max_tokens=64"),
    "beam search, 4 x 4": ("arithmetic", ""),
    "REBASE, n=16": ("arithmetic", "search=rebase"),
}
"""For each row: the verifier, and what the command sets."""


def run(*, problems: int = 200, out: Path = RESULTS / "default_task.json") -> None:
    """Run the commands in a folder of their own, print a table and write the figures."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (verifier, overrides) in SEARCHES.items():
            words = [f"dataset.size={problems}", *overrides.split(), f"run.name={len(rows)}"]
            subprocess.run(
                [sys.executable, "-m", "experiments.run", *words], cwd=folder, check=True
            )
            summary = json.loads(
                (Path(folder) / "outputs" / str(len(rows)) / "summary.json").read_text()
            )
            rows.append(_row(name, verifier, summary))
    result = provenance(
        f"python -m experiments.bench default_task --problems {problems}",
        model=f"smollm2-135m, {default_dtype()}, its real weights",
    )
    result |= {"rows": rows}
    save(result, out)
    print(table(result))


def _row(name: str, verifier: str, summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "search": name,
        "verifier": verifier,
        **{
            key: summary[key]
            for key in ("problems", "accuracy", "accuracy_95", "pass_at_k", "maj_at_k")
        },
        **{
            key: summary[key]
            for key in ("generated_tokens_per_problem", "verifier_tokens", "seconds")
        },
    }


def draw(figures: Path, out: Path) -> None:
    """Plot accuracy against tokens."""
    rows = json.loads(figures.read_text(encoding="utf-8"))["rows"]
    points = [
        {
            "row": row["search"],
            "accuracy": row["accuracy"],
            "accuracy_95": row["accuracy_95"],
            "generated_tokens": row["generated_tokens_per_problem"],
            "verifier_tokens": row["verifier_tokens"] / row["problems"],
            "flops": None,
        }
        for row in rows
    ]
    accuracy_against_compute(points, out)


def table_and_plot(result: dict[str, Any]) -> str:
    """For the README."""
    link = "![accuracy against tokens on the default task](docs/plots/default_task.png)"
    return f"{table(result)}\n\n{link}"


def table(result: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| search | verifier | accuracy | 95% interval | tokens per problem |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        low, high = row["accuracy_95"]
        lines.append(
            f"| {row['search']} | {row['verifier']} | {row['accuracy']:.1%} | {low:.1%} to "
            f"{high:.1%} | {row['generated_tokens_per_problem']:.0f} |"
        )
    return "\n".join(lines)
