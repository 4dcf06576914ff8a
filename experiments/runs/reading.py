"""The files of a run's folder, read with a check of every value that this project reads of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from pydantic import TypeAdapter

from experiments.runs.config_values import as_dict
from experiments.runs.shapes import (
    FINGERPRINT,
    PROVENANCE,
    RECORD,
    SETTINGS,
    SUMMARY,
    fault,
    lacking,
)
from ttc.errors import InvalidInput, refuse, refusing
from ttc.text.encodable import encodable

NEEDED = ("id", "correct", "error", "branches", "usage")
"""What every version has written into a record."""
T = TypeVar("T")


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
    kill has torn is left out. needed: what each must have. Raises InvalidInput that names the first
    wrong value."""
    good = 0
    for number, (line, last) in enumerate(_lines(file), 1):
        try:
            record = encodable(json.loads(line))
        except (ValueError, RecursionError):
            record = None
        named = isinstance(record, dict) and isinstance(record.get("id"), str)
        whole = named and line.endswith(b"\n")
        if last and not whole:
            break
        what = fault(RECORD, record) if named else None
        missing = [name for name in needed if named and name not in record]
        damaged, way_out = f"{file}, line {number} is damaged", "restore it or delete that line"
        refuse(
            {
                f"{damaged}; {way_out}": not whole,
                f"{damaged}: {what}; {way_out}": what is not None,
                f"{file}, line {number} has no {' and no '.join(missing)}: another version or "
                "program wrote it, so it cannot be compared; run again under another run.name": (
                    missing
                ),
            }
        )
        good += len(line)
        yield record, good


def _lines(file: Path) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether it is the last."""
    with _reading(file), file.open("rb") as lines:
        line = next(lines, None)
        while line is not None:
            following = next(lines, None)
            yield line, following is None
            line = following


DEEPEST_YAML = 100
"""How deep the values of a file may lie in each other; the time to read them grows by the square of
that."""


def refuse_bombs(file: Path, text: str) -> None:
    """A few of YAML's aliases stand for more values than any memory holds."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidInput(f"{file} holds an alias (*NAME); write out what it stands for")
        begins = isinstance(event, yaml.CollectionStartEvent)
        depth += begins - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_YAML:
            raise InvalidInput(
                f"{file} is damaged: its values lie more than {DEEPEST_YAML} deep in each other"
            )


def read_settings(file: Path) -> dict[str, Any]:
    """A run's config.yaml. Raises InvalidInput for one that is damaged."""
    damaged = f"{file} is damaged: {{error}}; restore it"
    # what YAML's and OmegaConf's readers raise has no common class
    with refusing(Exception, damaged, but=InvalidInput, words=_first_line):
        with _reading(file):
            text = file.read_text(encoding="utf-8")
        refuse_bombs(file, text)
        settings = as_dict(OmegaConf.create(text))
        what = fault(SETTINGS, settings)
    if what is not None:
        raise InvalidInput(f"{file} is damaged: {what}; restore it")
    return settings


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def read_summary(folder: Path) -> dict[str, Any]:
    """A run's summary.json, {} without one."""
    return _read_json(folder / "summary.json", {}, SUMMARY)


def read_fingerprint(folder: Path) -> dict[str, dict[str, str]]:
    """What a run was made from (see `experiments.runs.fingerprint`), {} without that file."""
    return _read_json(folder / "fingerprint.json", {}, FINGERPRINT)


def read_provenance(folder: Path) -> list[dict[str, Any]]:
    """What each go of a run was made by, [] without a provenance.json."""
    return _read_json(folder / "provenance.json", [], PROVENANCE)


def check_whole(folder: Path, record: dict[str, Any]) -> None:
    """Raise InvalidInput for a record that lacks what this version writes."""
    if (missing := lacking(record)) is not None:
        raise InvalidInput(
            f"{folder}, problem {record['id']} has no {missing}: another version wrote it; run "
            "again under another run.name"
        )


def _read_json(file: Path, default: T, shape: TypeAdapter[Any]) -> T:
    if not file.is_file():
        return default
    try:
        with _reading(file):
            value: T = encodable(json.loads(file.read_text(encoding="utf-8")))
        what = fault(shape, value)
    except (ValueError, RecursionError) as error:
        what = str(error)
    if what is not None:
        raise InvalidInput(f"{file} is damaged: {what}; restore or delete it")
    return value


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    with refusing(OSError, f"{file} is damaged: {{error}}; restore it"):
        yield
