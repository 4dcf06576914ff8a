"""Questions of four choices in four orders: accuracy by where the right choice stands, and its
interval clustered by question beside the one that takes orders for problems of their own and that of
one order.

The questions are sums of `examples/choices.py`, answered at once after examples without reasoning:
GPQA needs an account on the hub.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import experiments.runs.problem_loop  # noqa: F401  the record names the code that a run uses
from experiments.lab.bench.best_searches import made_runs
from experiments.lab.bench.dtypes import default_dtype
from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from experiments.runs.stats import wilson
from experiments.runs.summary import by_question, interval_of, is_right, mean

SEARCHES = {"greedy": "search=greedy search.max_tokens=16"}
"""For each row what its command sets."""

Records = Sequence[dict[str, Any]]


def run(
    *,
    questions: int = 24,
    orders: int = 4,
    shots: Annotated[int, "solved examples, of other questions"] = 2,
    runs: Annotated[Path, "the folder of the runs"] = Path("outputs/orders"),
    out: Path = RESULTS / "orders.json",
) -> None:
    """Make the runs that are missing, print the table and write the figures."""
    runs.mkdir(parents=True, exist_ok=True)
    files = {}
    for seed, count in ((0, questions), (1, shots)):
        files[seed] = (runs / f"choices{seed}-{count}.jsonl").resolve()
        command = [sys.executable, "examples/choices.py", *map(str, (files[seed], seed, count))]
        subprocess.run(command, check=True)
    common = [
        *("dataset=arc_challenge", f"dataset.path={files[0]}", f"model.dtype={default_dtype()}"),
        *(f"dataset.shots={shots}", f"dataset.shots_path={files[1]}"),
        f"dataset.orders={orders}",
    ]
    rows = []
    for name, words in SEARCHES.items():
        (made,) = made_runs(name, [*common, *words.split()], (0,), runs)
        rows.append({"row": name} | figures(list(made.records.values())) | {"settings": words})
    words = f"--questions {questions} --orders {orders} --shots {shots}"
    record = provenance(
        f"python -m experiments.bench orders {words}",
        model=f"smollm2-135m, {default_dtype()}, its real weights",
    )
    save(record | {"rows": rows}, out)
    print(table(rows))


def figures(records: Records) -> dict[str, Any]:
    """Accuracy, its interval clustered by question, and beside it what others would say: by all
    problems as if they were independent, by the first order alone, and by the right letter."""
    shares = by_question(records, is_right)
    first = [record for record in records if "order_of" not in record]
    letters = sorted({record["gold"] for record in records})
    return {
        "problems": len(records),
        "questions": len(shares),
        "accuracy": mean(shares),
        "clustered_95": interval_of(shares),
        "as_if_independent_95": list(wilson(sum(map(is_right, records)), len(records))),
        "first_order": mean(list(map(is_right, first))),
        "first_order_95": list(wilson(sum(map(is_right, first)), len(first))),
        "by_right_letter": {
            letter: mean([is_right(r) for r in records if r["gold"] == letter])
            for letter in letters
        },
        "answers": {
            str(letter): sum(r["answer"] == letter for r in records) for letter in (*letters, None)
        },
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| search | accuracy | clustered | as if independent | one order | by the right letter |",
        "|---" * 6 + "|",
    ]
    for row in rows:
        ends = [
            "{:.1%} to {:.1%}".format(*row[name])
            for name in ("clustered_95", "as_if_independent_95", "first_order_95")
        ]
        letters = ", ".join(f"{k} {v:.0%}" for k, v in row["by_right_letter"].items())
        lines.append(
            f"| {row['row']} | {row['accuracy']:.1%} | {ends[0]} | {ends[1]} "
            f"| {row['first_order']:.1%}, {ends[2]} | {letters} |"
        )
    return "\n".join(lines)
