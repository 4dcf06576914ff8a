"""The files of a run's folder, read so that one that is torn or of another program is named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.runs.config_values import as_dict
from ttc.errors import InvalidInput
from ttc.text.encodable import encodable

NEEDED = ("id", "correct", "error", "branches", "usage")
"""What every version has written into a record."""
WHOLE = ("tree", "timing", "correct_strict", "answer", "question", "gold")
"""What this version writes beside that."""


def read_records(
    file: Path, needed: Sequence[str] = NEEDED
) -> tuple[dict[str, dict[str, Any]], int]:
    """A run's records by id, and how many bytes hold them (see `each_record`)."""
    records: dict[str, dict[str, Any]] = {}
    good = 0
    for record, end in each_record(file, needed):
        records[record["id"]] = record
        good = end
    return records, good


def each_record(file: Path, needed: Sequence[str] = NEEDED) -> Iterator[tuple[dict[str, Any], int]]:
    """A run's records one after the other, each with the byte where it ends: a last line that a
    kill has torn is left out. needed: what each must have. Raises InvalidInput for a line that is
    no record."""
    good = 0
    torn = 0
    with _named(file), file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if torn:
                raise InvalidInput(
                    f"{file}, line {torn} is damaged; restore it or delete that line"
                )
            try:
                record = encodable(json.loads(line))
                known = isinstance(record, dict) and isinstance(record.get("id"), str)
            except (ValueError, RecursionError):
                known = False
            if not known or not line.endswith(b"\n"):
                torn = number
                continue
            if missing := [name for name in needed if name not in record]:
                raise InvalidInput(
                    f"{file}, line {number} has no {' and no '.join(missing)}: another version or "
                    "program wrote it, so it cannot be compared; run again under another run.name"
                )
            good += len(line)
            yield record, good


def read_settings(file: Path) -> dict[str, Any]:
    """A run's config.yaml. Raises InvalidInput for one that is damaged."""
    with _named(file):
        settings = as_dict(OmegaConf.create(file.read_text(encoding="utf-8")))
        if not settings["model"]["name"] or not isinstance(settings["run"]["seed"], int):
            raise ValueError("it names no model and seed")
    return settings


def read_summary(folder: Path) -> dict[str, Any]:
    """A run's summary.json, {} without one."""
    return dict(_read_json(folder / "summary.json", {}))


def read_fingerprint(folder: Path) -> dict[str, dict[str, str]]:
    """What a run was made from (see `experiments.runs.fingerprint`), {} without a
    fingerprint.json."""
    return dict(_read_json(folder / "fingerprint.json", {}))


def read_provenance(folder: Path) -> list[dict[str, Any]]:
    """What each go of a run was made by, [] without a provenance.json."""
    return list(_read_json(folder / "provenance.json", []))


def check_whole(folder: Path, record: dict[str, Any]) -> None:
    """Raise InvalidInput for a record that lacks what this version writes."""
    if missing := [name for name in WHOLE if name not in record]:
        raise InvalidInput(
            f"{folder}, problem {record['id']} has no {missing[0]}: another version wrote it; run "
            "again under another run.name"
        )


def _read_json(file: Path, default: Any) -> Any:
    if not file.is_file():
        return default
    with _named(file):
        value = encodable(json.loads(file.read_text(encoding="utf-8")))
        if type(value) is not type(default):
            raise ValueError(f"it is {value!r:.40}")
    return value


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Raise InvalidInput that names the file where it cannot be read."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:  # what YAML's and OmegaConf's readers raise has no common class
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"{file} is damaged: {what}; restore it") from error
