"""What a comparison says: figures of each row, and differences between rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

from experiments.eval.compare.rows import ComparedRow, differ
from experiments.runs.finished import FinishedRun
from experiments.runs.parameters import flops, run_parameters
from experiments.runs.stats import holm, paired, unpaired
from experiments.runs.summary import (
    branch_counts,
    by_path,
    failed,
    is_right_strictly,
    majority_share,
    mean,
    pass_share,
    question_of,
    widths,
)

TOKENS = ("generated_tokens", "verifier_tokens", "prompt_tokens")


def row_figures(row: ComparedRow) -> dict[str, Any]:
    """Accuracy with its interval, pass@k, maj@k, and costs per problem; means over the row's
    runs."""
    estimate = row.estimate
    records = [record for run in row.runs for record in run.records.values()]
    usages = [record["usage"] for record in records]
    return {
        "row": row.name,
        "folders": [str(run.folder) for run in row.runs],
        "seeds": [run.config.get("run.seed") for run in row.runs],
        "runs": len(row.runs),
        "problems": len(row.values),
        "accuracy": estimate.mean,
        "accuracy_95": [estimate.low, estimate.high],
        "standard_error": None if math.isnan(estimate.error) else estimate.error,
        "interval": estimate.interval,
        "accuracy_strict": row.mean(is_right_strictly),
        "failed": sum(map(failed, records)),
        "left": sum(len(run.left) for run in row.runs),
        "branches": branch_counts(records),
        "pass_at_k": {str(k): row.mean(partial(pass_share, k=k)) for k in widths(records)},
        "maj_at_k": {str(k): row.mean(partial(majority_share, k=k)) for k in widths(records)},
        **{kind: mean([usage.get(kind, 0) for usage in usages]) for kind in TOKENS},
        "flops": _flops(row.runs),
        "seconds": _seconds(row.runs),
        "kv_peak_bytes": _kv_peak_bytes(records),
    }


def pair_figures(rows: Sequence[ComparedRow], every: bool = False) -> list[dict[str, Any]]:
    """Each row minus the first, or minus every row before it, over the problems of both, with p
    adjusted over them all. Rows without a problem in common are compared as independent samples."""
    pairs = [_pair(row, base) for base, row in combinations(rows, 2) if every or base is rows[0]]
    for pair, adjusted in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = adjusted
    return pairs


def repeat_figures(rows: Sequence[ComparedRow]) -> list[dict[str, Any]]:
    """How alike the records are of a row and of the first one with its configuration, over the
    problems and seeds of both."""
    first: dict[str, ComparedRow] = {}
    figures = []
    for row in rows:
        base = first.setdefault(row.configuration, row)
        runs = {run.config.get("run.seed"): run for run in base.runs}
        pairs = [
            (name, record, before)
            for run in row.runs
            if row is not base and (other := runs.get(run.config.get("run.seed"))) is not None
            for name, record in run.records.items()
            if (before := other.records.get(name)) is not None
        ]
        if not pairs:
            continue
        others = [name for name, a, b in pairs if a["answer"] != b["answer"]]
        texts = [(_texts(a), _texts(b)) for _, a, b in pairs]
        known = all(a and b for a, b in texts)
        figures.append(
            {
                "row": row.name,
                "against": base.name,
                "problems": len(pairs),
                "same_answers": len(pairs) - len(others),
                "same_texts": sum(a == b for a, b in texts) if known else None,
                "other_answers": others,
            }
        )
    return figures


def _texts(record: dict[str, Any]) -> list[Any] | None:
    """Every branch's text by its path; None where the record has none, as of private data."""
    branches = by_path(record["branches"])
    private = not record.get("question")
    if any(b.get("text") is None or (private and b.get("tokens")) for b in branches):
        return None
    return [[b["path"], b.get("thought"), b["text"]] for b in branches]


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places of the (cost, accuracy) points that none as cheap reaches, the cheapest first."""
    best = -math.inf
    kept = []
    for place in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if points[place][1] > best:
            best = points[place][1]
            kept.append(place)
    return kept


def _pair(row: ComparedRow, base: ComparedRow) -> dict[str, Any]:
    marks, others = (
        {name: mark for run in side.runs for name, mark in run.problems.items()}
        for side in (row, base)
    )
    changed = {
        question_of(record)
        for run in row.runs
        for name, record in run.records.items()
        if name in others and differ(marks[name], others[name])
    }
    both = [name for name in row.values if name in base.values and name not in changed]
    if both:
        test = paired(
            [row.values[n] for n in both], [base.values[n] for n in both], row.sources(both)
        )
    else:
        test = unpaired(row.estimate, base.estimate)
    return {
        "row": row.name,
        "against": base.name,
        "problems": len(both),
        "difference": test.difference.mean,
        "difference_95": [test.difference.low, test.difference.high],
        "correlation": test.correlation,
        "test": test.test,
        "p": test.p,
        "detectable": test.detectable,
    }


def _flops(runs: Sequence[FinishedRun]) -> float | None:
    """Per problem; None where a model's parameters are not known."""
    costs: list[float] = []
    for run in runs:
        parameters = run.summary.get("parameters") or run_parameters(
            run.config["model.name"], run.settings.get("verifier") or {}
        )
        for record in run.records.values():
            if (cost := flops(record["usage"], parameters)) is None:
                return None
            costs.append(cost)
    return mean(costs)


def _seconds(runs: Sequence[FinishedRun]) -> float | None:
    """Per problem; None where a run has no summary yet."""
    spent = [run.summary["seconds"] / len(run.records) for run in runs if "seconds" in run.summary]
    return mean(spent) if len(spent) == len(runs) else None


def _kv_peak_bytes(records: Sequence[dict[str, Any]]) -> int | None:
    peaks = (record.get("timing", {}).get("kv_peak_bytes") for record in records)
    return max((peak for peak in peaks if peak is not None), default=None)
