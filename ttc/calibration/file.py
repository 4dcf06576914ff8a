"""Calibrations are kept in small JSON files, each for one model and one data set."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Self

from ttc.errors import InvalidInput


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
