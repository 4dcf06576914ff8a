"""The confidence gate's thresholds for one model and data set, found on held-out problems and kept in a file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import numpy as np

from ttc.errors import InvalidInput

NEVER = 2.0
"""A tau_conf that no probability reaches."""
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
CONFIDENCE = 0.95


def verify_skip(max_p: float, gap: float, tau_conf: float, r_gap: float) -> bool:
    """RKSC's Eq. 4: skip the verification of a problem whose best branch is confident and well ahead of the second.

    max_p: the largest p of its branches. gap: (max - second) / max of p.
    """
    return max_p >= tau_conf and gap >= r_gap


@dataclass(frozen=True)
class Observation:
    """One held-out problem: what the gate sees of it, and whether both ways of rating choose the same solution."""

    max_p: float
    gap: float
    agrees: bool


class CalibrationFile:
    """A dataclass that is kept in a small JSON file and holds for one model and one data set."""

    model: str
    dataset: str
    settings: dict[str, Any]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, in one piece; folders are made."""
        file = Path(path)
        new = file.with_name(file.name + ".new")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(asdict(self), indent=2, allow_nan=False) + "\n", encoding="utf-8")  # type: ignore[call-overload]
            os.replace(new, file)
        except OSError as error:
            raise InvalidInput(f"cannot write the calibration {file}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: str, dataset: str) -> Self:
        """Read what `save` wrote. Raises InvalidInput for another model's or data set's file, by name."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInput(f"cannot read the calibration {path}: {error.strerror}") from error
        except ValueError as error:
            raise InvalidInput(f"{path} is no calibration, it is not JSON: {error}") from error
        names = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        if not isinstance(found, dict) or found.keys() != names:
            wrong = sorted(found.keys() ^ names) if isinstance(found, dict) else type(found).__name__
            raise InvalidInput(f"{path} is no {cls.__name__} of this version; missing or unknown: {wrong}")
        try:
            made = cls._from(found)
        except (InvalidInput, TypeError) as error:
            raise InvalidInput(f"{path} is damaged: {error}") from error
        for kind, its, wanted in (("model", made.model, model), ("data set", made.dataset, dataset)):
            if its != wanted:
                raise InvalidInput(
                    f"{path} was calibrated for the {kind} {its!r}, not for {wanted!r}; name another file, or make one "
                    "with python -m experiments.calibrate"
                )
        return made

    def check_use(self, file: str, dataset: dict[str, Any], search: dict[str, Any]) -> None:
        """Refuse a run on problems that it was made from, and a run of another kind of search.

        file: its name, for the message. dataset, search: the run's settings of these names. What was made by hand, with
        no `settings`, passes.
        """
        its = self.settings.get("dataset", {})
        if its and _source(its) == _source(dataset) and _overlap(_rows(its), _rows(dataset)):
            raise InvalidInput(
                f"{file}: these problems were used to calibrate; choose others by dataset.offset, dataset.seed or "
                f"dataset.split (it has {_shown(its)}, the run {_shown(dataset)})"
            )
        target, wanted = self.settings.get("search", {}).get("_target_"), search.get("_target_")
        if target is not None and target != wanted:
            raise InvalidInput(
                f"{file} was calibrated with {target}, and its counts do not hold for {wanted}; use that search, or "
                "make another file with python -m experiments.calibrate"
            )

    @classmethod
    def _from(cls, found: dict[str, Any]) -> Self:
        return cls(**found)


def _source(dataset: dict[str, Any]) -> tuple[Any, ...]:
    """Where a data set's rows come from, however they are asked: a task, a file or the hub."""
    if dataset.get("task") is not None:
        return "task", dataset["task"], dataset.get("params") or {}
    if dataset.get("path") is not None:
        return "path", str(Path(dataset["path"]).expanduser().resolve())
    return "hub", *(dataset.get(key) for key in ("hub", "subset", "split"))


def _rows(dataset: dict[str, Any]) -> tuple[float, float]:
    """The first row that is used, and the one after the last.

    A task makes problem i of seed s from s + i, so that a near seed has many of the same problems.
    """
    is_task, start, limit = dataset.get("task") is not None, dataset.get("offset", 0), dataset.get("limit")
    stop = start + limit if limit is not None else dataset.get("size", math.inf) if is_task else math.inf
    seed = dataset.get("seed", 0) if is_task else 0
    return seed + start, seed + stop


def _overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


def _shown(dataset: dict[str, Any]) -> str:
    keys = ("split", "seed", "size", "offset", "limit")
    return ", ".join(f"{key}={dataset[key]}" for key in keys if dataset.get(key) is not None)


@dataclass(frozen=True)
class Calibration(CalibrationFile):
    """Thresholds, what they were found on, and how often the gate changed the chosen solution there.

    model, dataset: the names that a run must have to use it. problems: held-out problems it was made from.
    quantiles: the minimum, quartiles and maximum of "max_p" and "gap" over them. max_disagreement: the bound that the
    thresholds were chosen under; None for RKSC's percentiles.
    checked: problems on which the gate was then compared with full verification; skipped: of these, those that it
    skips; disagreements: of those, the ones where another solution is chosen. disagreement_bound: with 95% confidence,
    at most this share of problems (the verified ones counted) ends with another solution.
    settings: the search, verifier, data set, seed and so on that it was made with; the counts hold for them, and
    `check_use` compares a run with them.
    """

    model: str
    dataset: str
    tau_conf: float
    r_gap: float
    problems: int
    quantiles: dict[str, list[float]]
    max_disagreement: float | None
    checked: int
    skipped: int
    disagreements: int
    disagreement_bound: float
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tau_conf", "r_gap"):
            check_threshold(name, getattr(self, name))
        check_counts(
            disagreements=self.disagreements, skipped=self.skipped, checked=self.checked, problems=self.problems
        )


def calibrate(
    observations: Sequence[Observation],
    *,
    model: str,
    dataset: str,
    max_disagreement: float | None = None,
    settings: dict[str, Any] | None = None,
) -> Calibration:
    """Thresholds from held-out problems, and how often they disagree with full verification.

    max_disagreement: None for RKSC's percentiles of all problems; these do not look at agreement, and the count is of
    the same problems. Otherwise the thresholds are `risk_controlled` on every other problem, and the count is of those
    in between: a choice that was made for having few disagreements must be counted where it was not made.
    """
    if max_disagreement is not None and not 0 <= max_disagreement <= 1:
        raise InvalidInput(f"max_disagreement={max_disagreement} must lie in [0, 1]")
    least = 1 if max_disagreement is None else 2
    if len(observations) < least:
        raise InvalidInput(f"{len(observations)} held-out problems gave an observation; at least {least} are needed")
    if max_disagreement is None:
        checked = observations
        tau_conf, r_gap = percentiles(observations)
    else:
        checked = observations[1::2]
        tau_conf, r_gap = risk_controlled(observations[::2], max_disagreement)
    skipped = [o for o in checked if verify_skip(o.max_p, o.gap, tau_conf, r_gap)]
    disagreements = sum(not o.agrees for o in skipped)
    return Calibration(
        model,
        dataset,
        tau_conf,
        r_gap,
        len(observations),
        {
            "max_p": quantiles([o.max_p for o in observations]),
            "gap": quantiles([o.gap for o in observations]),
        },
        max_disagreement,
        len(checked),
        len(skipped),
        disagreements,
        clopper_pearson(disagreements, len(checked)),
        settings or {},
    )


def percentiles(observations: Sequence[Observation]) -> tuple[float, float]:
    """RKSC's thresholds (section 2.3): tau_conf the 75th percentile of max p, r_gap the 25th of the gap.

    Between two observations they are interpolated. At most a quarter of the calibration problems lie above the 75th
    percentile, so the gate skips no more of them (ties aside); the paper reports 42% to 92% on its evaluation sets.
    """
    return _quantile([o.max_p for o in observations], 0.75), _quantile([o.gap for o in observations], 0.25)


def risk_controlled(observations: Sequence[Observation], max_disagreement: float) -> tuple[float, float]:
    """The (tau_conf, r_gap) that skips most problems while at most `max_disagreement` of all problems are skipped and
    disagree.

    Candidates are the observed values. Of equals: fewer disagreements, then higher thresholds. (NEVER, 0) if even the
    clearest problem disagrees.
    """
    best = (0, 0, NEVER, 0.0)  # skipped, -disagreements, tau_conf, r_gap
    for tau_conf in {o.max_p for o in observations}:
        eligible = sorted((o for o in observations if o.max_p >= tau_conf), key=lambda o: -o.gap)
        skipped = disagreements = 0
        for r_gap, tied in groupby(eligible, key=lambda o: o.gap):
            for observation in tied:
                skipped += 1
                disagreements += not observation.agrees
            if disagreements / len(observations) > max_disagreement:
                break
            best = max(best, (skipped, -disagreements, tau_conf, r_gap))
    return best[2], best[3]


def clopper_pearson(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The one-sided upper bound of a proportion (Clopper and Pearson, 1934); 1 for no trials.

    It is the largest proportion under which `hits` or fewer of `trials` still have a probability of 1 - confidence.
    """
    if hits >= trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(hits, trials, middle) >= 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def check_threshold(name: str, value: float) -> None:
    """Refuse what is no threshold: it must be a number of at least 0; above 1 it is never reached."""
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput(f"{name}={value!r} must be a number of at least 0 (above 1: never skip)")


def check_counts(**counts: int) -> None:
    """Refuse counts that are not whole, or of which one is a part of the next and yet larger."""
    found = list(counts.values())
    if not all(isinstance(n, int) for n in found) or found != sorted(found) or found[0] < 0:
        raise InvalidInput(f"the counts {', '.join(counts)} = {tuple(found)} must be whole and must not decrease")


def quantiles(values: Sequence[float]) -> list[float]:
    """Minimum, quartiles and maximum; nothing of nothing."""
    return [_quantile(values, q) for q in LEVELS] if values else []


def _at_most(hits: int, trials: int, p: float) -> float:
    """P(X <= hits) for X ~ Binomial(trials, p), 0 < p < 1."""
    logs = (
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(p)
        + (trials - k) * math.log1p(-p)
        for k in range(hits + 1)
    )
    return math.fsum(map(math.exp, logs))


def _quantile(values: Sequence[float], q: float) -> float:
    return float(np.quantile(values, q))
