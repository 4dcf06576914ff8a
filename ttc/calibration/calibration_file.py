"""Calibrations are kept in small JSON files, each for one model and one data set."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from ttc.calibration.error_bounds import check_counts
from ttc.checks import Probability, check_option
from ttc.errors import InvalidInput, refuse, refusing

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class CalibrationFile:
    """What was found on held-out problems, and how often it changes what is chosen.

    model, dataset: the names that a run must have to use it. problems: how many it was made from;
    quantiles: minimum, quartiles and maximum of figures over these. max_disagreement: the bound
    that it was chosen under; None for RKSC's rule.
    checked: problems on which it was then compared with the full computation; disagreements: those
    where something else is chosen. disagreement_bound: with 95% confidence, at most this share of
    problems ends with something else.
    settings: the search, verifier, data set, seed and so on that it was made with; the counts hold
    for them, and `check_use` compares a run with them.
    """

    model: str
    dataset: str
    problems: int
    quantiles: dict[str, list[float]]
    max_disagreement: float | None
    checked: int
    disagreements: int
    disagreement_bound: float
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_counts(disagreements=self.disagreements, checked=self.checked, problems=self.problems)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, in one piece; folders are made."""
        file = Path(path)
        new = file.with_name(file.name + ".new")
        text = json.dumps(asdict(self), indent=2, allow_nan=False)
        with refusing(OSError, f"cannot write the calibration {file}: {{error}}"):
            file.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(text + "\n", encoding="utf-8")
            os.replace(new, file)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: str, dataset: str) -> Self:
        """Read what `save` wrote. Raises InvalidInput for another model's or data set's file."""
        with (
            refusing(
                OSError,
                f"cannot read the calibration {path} ({{error}}); make one with python -m "
                "experiments.calibrate",
            ),
            refusing(ValueError, f"{path} is no calibration, it is not JSON: {{error}}"),
        ):
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        names = {f.name for f in fields(cls)}
        if not isinstance(values, dict) or values.keys() != names:
            is_object = isinstance(values, dict)
            wrong = sorted(values.keys() ^ names) if is_object else type(values).__name__
            raise InvalidInput(
                f"{path} is no {cls.__name__} of this version; missing or unknown: {wrong}"
            )
        with refusing((InvalidInput, TypeError), f"{path} is damaged: {{error}}"):
            loaded = cls._from(values)
        kinds = ("model", loaded.model, model), ("data set", loaded.dataset, dataset)
        refuse(
            {
                f"{path} was calibrated for the {kind} {name!r}, not for {expected!r}; name "
                "another file, or make one with python -m experiments.calibrate": name != expected
                for kind, name, expected in kinds
            }
        )
        return loaded

    def check_use(self, file: str, dataset: dict[str, Any], search: dict[str, Any]) -> None:
        """Refuse a run on problems that it was made from, and a run of another kind of search.

        file: its name, for the message. dataset, search: the run's settings of these names. What
        was made by hand, with no `settings`, passes.
        """
        source = self.settings.get("dataset", {})
        same_source = source and _source(source) == _source(dataset)
        target, current = self.settings.get("search", {}).get("_target_"), search.get("_target_")
        refuse(
            {
                f"{file}: these problems were used to calibrate; choose others by dataset.offset, "
                f"dataset.seed or dataset.split (it has {_rows_text(source)}, the run "
                f"{_rows_text(dataset)})": same_source and _overlap(_rows(source), _rows(dataset)),
                f"{file} was calibrated with {target}, and its counts do not hold for {current}; "
                "use that search, or make another file with python -m experiments.calibrate": (
                    target not in (None, current)
                ),
            }
        )

    @classmethod
    def _from(cls, values: dict[str, Any]) -> Self:
        return cls(**values)


def chosen_and_checked(
    problems: Sequence[T], max_disagreement: float | None
) -> tuple[Sequence[T], Sequence[T]]:
    """The problems to choose on, and those to count disagreements on.

    RKSC's rules (max_disagreement None) don't look at agreement, so both are all problems. A choice
    for few disagreements must be counted where it was not made: on every other problem.
    """
    check_option("max_disagreement", max_disagreement, Probability | None)
    needed = 1 if max_disagreement is None else 2
    if len(problems) < needed:
        raise InvalidInput(
            f"{len(problems)} held-out problems were rated; at least {needed} are needed"
        )
    if max_disagreement is None:
        return problems, problems
    return problems[::2], problems[1::2]


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
    start, limit = dataset.get("offset", 0), dataset.get("limit")
    is_task = dataset.get("task") is not None
    size = dataset.get("size", math.inf) if is_task else math.inf
    stop = size if limit is None else start + limit
    seed = dataset.get("seed", 0) if is_task else 0
    return seed + start, seed + stop


def _overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


def _rows_text(dataset: dict[str, Any]) -> str:
    keys = ("split", "seed", "size", "offset", "limit")
    return ", ".join(f"{key}={dataset[key]}" for key in keys if dataset.get(key) is not None)
