"""Where a data set's rows come from: a file or the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ttc.errors import InvalidInput
from ttc.model.hub import reached

Row = dict[str, Any]
UNREADABLE = "unreadable line"
"""The field of a row that stands for a line which is no JSON: why it is none."""

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def rows_of_file(name: str, key: str = "dataset.path") -> list[Row]:
    """The rows of the file `name`, which `key` of the configuration gave."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise InvalidInput(f"{key}={name} is not a file")
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"{key}={name} ends in {path.suffix!r}; use one of {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".parquet":
            return _parquet_rows(path)
        if path.suffix in (".csv", ".tsv"):
            return _table_rows(path, "," if path.suffix == ".csv" else "\t")
    except Exception as error:
        raise InvalidInput(f"{key}={name} cannot be read: {error}") from error
    return _json_rows(path)


def rows_of_hub(name: str, subset: str | None, split: str) -> list[Row]:
    """The rows of one split of a data set of the hub; without a network, those of an earlier download."""
    import datasets

    with reached(name, "dataset") as online:
        try:
            return list(datasets.load_dataset(name, subset, split=split))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if not online:
                reason = "the hub cannot be reached, and no copy lies in this machine's cache"
            raise InvalidInput(
                f"cannot load the data set {name} ({reason}); check the name, your network and, for gated data, "
                "`hf auth login`, or give a local copy: dataset.path=FILE"
            ) from error


def _json_rows(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text ({error}); convert it, as with iconv -t utf-8") from error
    if path.suffix == ".json":
        try:
            rows = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidInput(f"{path} is not JSON: {error}") from error
        if not isinstance(rows, list):
            raise InvalidInput(f"{path} holds a {type(rows).__name__}; a .json data set is a list of objects")
        return rows
    rows = []
    for line in filter(str.strip, text.split("\n")):  # other separators may stand inside a string
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            rows.append({UNREADABLE: str(error)})
    return rows


def _table_rows(path: Path, separator: str) -> list[Row]:
    """Every cell as the text that it is: "None" may be a choice, "007" an answer."""
    import pandas

    table = pandas.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    return table.to_dict("records")


def _parquet_rows(path: Path) -> list[Row]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()
