"""F1 of a verifier on each part, and the published rows beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from experiments.cli.tables import Table
from experiments.recipes.processbench.samples import PARTS, LabelledSample
from ttc.errors import InvalidInput

DRAWS = 10_000
PAPER, CARD = "arXiv 2412.06559, Table 3", "the model card of infly/Universal-PRM-7B"


@dataclass(frozen=True)
class Published:
    """A row of a table. figures: F1 in percent on the four parts, and their mean."""

    model: str
    figures: tuple[float, float, float, float, float]
    source: str = PAPER


PUBLISHED = (
    Published("math-shepherd-mistral-7b-prm", (47.9, 29.5, 24.8, 23.8, 31.5)),
    Published("Llama3.1-8B-PRM-Mistral-Data", (50.4, 33.4, 13.8, 15.8, 28.4)),
    Published("Llama3.1-8B-PRM-Deepseek-Data", (38.8, 33.8, 16.9, 16.9, 26.6)),
    Published("Skywork-o1-Open-PRM-Qwen-2.5-1.5B", (59.0, 48.0, 19.3, 19.2, 36.4)),
    Published("Skywork-o1-Open-PRM-Qwen-2.5-7B", (70.8, 53.6, 22.9, 21.0, 42.1)),
    Published("Qwen2.5-Math-7B-PRM800K", (68.2, 62.6, 50.7, 44.3, 56.5)),
    Published("Qwen2.5-Math-PRM-7B", (82.4, 77.6, 67.5, 66.3, 73.5), CARD),
)

NOTES = (
    f"published: {PAPER}; Qwen2.5-Math-PRM-7B: {CARD}. Their four parts have 400 (GSM8K) and 1,000 "
    "samples each.",
    "F1 is the harmonic mean of the accuracy on solutions with a wrong step (its index must be "
    "named) and on right ones. The interval is that of F1 under Jeffreys' posteriors of the two.",
    "The paper takes steps for right from a score on: 0.5, and for Skywork's models the threshold "
    "with the highest F1 on GSM8K (processbench.threshold=gsm8k).",
    "RLHFlow's models are asked there for their likeliest token and given the question and a blank "
    "line before the first step; here by P(+) against P(-), with a blank between them, as their "
    "authors do.",
)


@dataclass(frozen=True)
class PartFigures:
    """Of one part. wrong, right: accuracy on solutions with a wrong step, and on right ones; None
    where there are none. f1_95: an interval."""

    part: str
    samples: int
    unrated: int
    wrong: float | None
    right: float | None
    f1: float | None
    f1_95: tuple[float, float] | None


def predicted(scores: Sequence[float], threshold: float) -> int:
    """The first step with a score below the threshold, -1 where there is none."""
    return next((place for place, score in enumerate(scores) if score < threshold), -1)


def f1(wrong: float, right: float) -> float:
    """The harmonic mean of two accuracies, 0 where one of them is."""
    return 2 * wrong * right / (wrong + right) if wrong + right else 0.0


def figures_of(
    part: str, samples: Sequence[LabelledSample], scores: Mapping[str, Any], threshold: float
) -> PartFigures:
    """Of the samples of a part that have been rated. One that cannot be rated counts as missed."""
    done = [sample for sample in samples if sample.part == part and sample.id in scores]
    wrong, right = _hits(done, scores, threshold)
    unrated = sum(not isinstance(scores[sample.id], list) for sample in done)
    wrong_share = sum(wrong) / len(wrong) if wrong else None
    right_share = sum(right) / len(right) if right else None
    both = f1_95 = None
    if wrong_share is not None and right_share is not None:
        both = f1(wrong_share, right_share)
        f1_95 = interval(wrong, right)
    return PartFigures(part, len(done), unrated, wrong_share, right_share, both, f1_95)


def _hits(
    samples: Sequence[LabelledSample], scores: Mapping[str, Any], threshold: float
) -> tuple[list[bool], list[bool]]:
    """Whether each solution with a wrong step, and each right one, is seen for what it is."""
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for sample in samples:
        row = scores[sample.id]
        hit = isinstance(row, list) and predicted(row, threshold) == sample.label
        hits[sample.label == -1].append(hit)
    return hits[False], hits[True]


def interval(wrong: Sequence[bool], right: Sequence[bool]) -> tuple[float, float]:
    """The middle 95% of F1, each accuracy drawn from its Beta(hits + 1/2, misses + 1/2)."""
    rng = np.random.default_rng(0)
    draws = [
        rng.beta(sum(hits) + 0.5, len(hits) - sum(hits) + 0.5, DRAWS) for hits in (wrong, right)
    ]
    means = 2 * draws[0] * draws[1] / (draws[0] + draws[1])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def best_threshold(
    samples: Sequence[LabelledSample], scores: Mapping[str, Any], part: str
) -> float:
    """The threshold with the highest F1 on a part, the lowest of equals. Raises InvalidInput where
    the part has no solution of a kind."""
    rated = [s for s in samples if s.part == part and isinstance(scores.get(s.id), list)]
    steps = sorted({score for sample in rated for score in scores[sample.id]})
    thresholds = [(low + high) / 2 for low, high in pairwise(steps)] or [0.5]
    best, best_f1 = thresholds[0], -1.0
    for threshold in thresholds:
        wrong, right = _hits(rated, scores, threshold)
        if not wrong or not right:
            raise InvalidInput(
                f"processbench.threshold={part} needs right and wrong solutions of {part}; give "
                "that part's data too, or a number"
            )
        value = f1(sum(wrong) / len(wrong), sum(right) / len(right))
        if value > best_f1:
            best, best_f1 = threshold, value
    return best


def table(title: str, rows: Sequence[PartFigures], model: str) -> Table:
    """A column for each part: ours, and the published rows, that of the same model marked."""
    mean = [row.f1 for row in rows if row.f1 is not None]
    average = f"{100 * sum(mean) / len(mean):.1f}" if len(mean) == len(PARTS) else "-"
    lines = [["ours", *(_cell(row) for row in rows), average]]
    same = model.rstrip("/").rpartition("/")[2].lower()
    for row in PUBLISHED:
        mark = " <- this model" if row.model.lower() == same else ""
        lines.append([f"{row.model}{mark}", *(f"{value:.1f}" for value in row.figures)])
    accuracies = [
        f"{row.part}: {row.samples} samples, wrong {_share(row.wrong)}, right {_share(row.right)}"
        + (f", {row.unrated} could not be rated" if row.unrated else "")
        for row in rows
    ]
    return Table(title, ("F1 in percent", *PARTS, "mean"), lines, [*accuracies, *NOTES])


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _cell(row: PartFigures) -> str:
    if row.f1 is None or row.f1_95 is None:
        return "-"
    low, high = row.f1_95
    return f"{100 * row.f1:.1f} ({100 * low:.1f} to {100 * high:.1f})"
