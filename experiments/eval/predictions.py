"""What each rule makes of the first candidates of a problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from experiments.runs.summary import KS, by_path, counted
from search.selection import Sample, best, majority, weighted_majority

RULES: dict[str, Callable[[Sequence[Sample]], int | None]] = {
    "naive": best,
    "weighted": weighted_majority,
    "maj": majority,
}
"""search-and-learn's names: the best score, the answer with the highest total score, the most
frequent answer."""
NEED_SCORES = ("naive", "weighted")


def predictions_of(record: dict[str, Any]) -> dict[str, tuple[str | None, bool]]:
    """Each rule's answer among the first n candidates, by its column, and whether it is right."""
    branches = by_path(counted(record))
    samples = [Sample.of_record(branch) for branch in branches]
    rated = any(sample.score is not None for sample in samples)
    predictions: dict[str, tuple[str | None, bool]] = {}
    for n in (k for k in KS if k <= len(samples)):
        for rule, choose in RULES.items():
            if rated or rule not in NEED_SCORES:
                place = choose(samples[:n])
                answer, right = None, False
                if place is not None:
                    answer, right = samples[place].answer, branches[place]["correct"]
                predictions[f"pred_{rule}@{n}"] = answer, right
    return predictions
