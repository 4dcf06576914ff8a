"""Searches whose model reads its own answers, beside others at equal budgets of generated and
verifier tokens, over some seeds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import experiments.runs.problem_loop  # noqa: F401  the record names the code that a run uses
from experiments.eval.compare.figures import pair_figures, row_figures
from experiments.eval.compare.rows import ComparedRow
from experiments.lab.bench.best_searches import made_runs
from experiments.lab.bench.dtypes import default_dtype
from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc.errors import InvalidInput

PRODUCTS = tuple(
    (
        f"Solve the following multiplication: {a} * {b}. Give only the result as your final answer.",
        f"{a} * {b} = {a * b}\\nThe answer is {a * b}.",
    )
    for a, b in ((6, 7), (14, 3), (5, 23))
)
EQUATIONS = (
    ("Solve for x: 3*x + 4 = 19", "19 - 4 = 15\\n15 / 3 = 5\\nThe answer is 5."),
    ("Solve for k: 7*k = 42", "42 / 7 = 6\\nThe answer is 6."),
    ("Solve for t: 8*t - 6 = 26", "26 + 6 = 32\\n32 / 8 = 4\\nThe answer is 4."),
)
"""Worked examples: questions and answers."""


def _task(task: str, examples: Sequence[tuple[str, str]], params: str) -> str:
    worked = ",".join(f'{{question:"{asked}",answer:"\\n{answer}"}}' for asked, answer in examples)
    return (
        f"dataset=reasoning_gym;dataset.task={task};+dataset.params={{{params}}};"
        'dataset.answer_kind=number;dataset.chat=false;dataset.instruction="{question}";'
        f'dataset.end=["\\n\\n"];dataset.examples=[{worked}]'
    )


TASKS = {
    "sums": "dataset=sums",
    "simple_equations": _task("simple_equations", EQUATIONS, "max_terms:2,max_value:20"),
    "products": _task("products", PRODUCTS, "min_terms:2,max_terms:2,min_digits:1,max_digits:2"),
}
"""For each task what its command sets, with semicolons: the default one, and two of reasoning-gym
with three worked examples."""

BUDGET = 240
"""Generated and verifier tokens of a problem."""

AGGREGATE = "search=aggregate search.max_tokens=64"
SEARCHES = {
    "write": ("aggregate, write", f"{AGGREGATE} search.n=4 search.k=3"),
    "select": ("aggregate, select", f"{AGGREGATE} search.mode=select search.n=6 search.k=3"),
    "best_of_n": ("best of n", "search=best_of_n search.n=24 search.max_tokens=64"),
    "self_consistency": (
        "self-consistency",
        "search=self_consistency search.n=24 search.max_tokens=64",
    ),
    "rebase": ("REBASE, n=12", "search=rebase search.n=12"),
}
"""For each search: the name of its row, and what its command sets. Samples are more than a budget
pays for, so that it ends them."""


def run(
    *,
    problems: int = 24,
    seeds: Sequence[int] = (0, 1, 2),
    tasks: Annotated[Sequence[str], "names with commas; default: all of the table"] = tuple(TASKS),
    runs: Annotated[Path, "the folder of the runs"] = Path("outputs/aggregation"),
    out: Path = RESULTS / "aggregation.json",
) -> None:
    """Make the runs that are missing, print the table and write the figures. Raises InvalidInput for
    tasks that are none of `TASKS`."""
    if unknown := [name for name in tasks if name not in TASKS]:
        raise InvalidInput(f"--tasks {unknown[0]!r} is unknown; use some of {','.join(TASKS)}")
    words = f"--problems {problems} --seeds {','.join(map(str, seeds))} --tasks {','.join(tasks)}"
    record = provenance(
        f"python -m experiments.bench aggregation {words}",
        model=f"smollm2-135m, {default_dtype()}, its real weights",
    )
    record |= {"budget": BUDGET, "tasks": []}
    for task in tasks:
        common = [*TASKS[task].split(";"), f"dataset.size={problems}", f"run.max_tokens={BUDGET}"]
        rows = [
            ComparedRow(label, made_runs(f"{task}-{name}", [*common, *search.split()], seeds, runs))
            for name, (label, search) in SEARCHES.items()
        ]
        figures = list(starmap(_figures, zip(rows, SEARCHES.values(), strict=True)))
        pairs = pair_figures(rows, every=True)
        record["tasks"].append({"task": task, "rows": figures, "pairs": pairs})
        save(record, out)
    print(table(record))


def _figures(row: ComparedRow, search: tuple[str, str]) -> dict[str, Any]:
    """A row with its settings. shared_tokens: those of a problem's prompts that were found in the
    tree, a mean."""
    figures = row_figures(row)
    del figures["folders"]
    usages = [record["usage"] for run in row.runs for record in run.records.values()]
    found = fmean(usage["shared_tokens"] for usage in usages)
    return figures | {"shared_tokens": found, "settings": search[1]}


def table(record: dict[str, Any]) -> str:
    """The searches of each task, the best first, as Markdown."""
    lines = [
        "| task | search | accuracy | 95% interval | generated | prompts read | computed |",
        "|---" * 7 + "|",
    ]
    for task in record["tasks"]:
        for row in sorted(task["rows"], key=lambda row: -row["accuracy"]):
            low, high = row["accuracy_95"]
            read, computed = row["prompt_tokens"] + row["shared_tokens"], row["prompt_tokens"]
            lines.append(
                f"| {task['task']} | {row['row']} | {row['accuracy']:.1%} | {low:.1%} to {high:.1%} "
                f"| {row['generated_tokens']:.0f} | {read:.0f} | {computed:.0f} |"
            )
    return "\n".join(lines)
