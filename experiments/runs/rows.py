"""Where a data set's rows come from: a file, a folder or the hub."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ttc.checks import check_once
from ttc.errors import InvalidInput, number_of, refuse, refusing
from ttc.model.loading.hub import reached

T = TypeVar("T")
Row = dict[str, Any]
UNREADABLE = "unreadable line"
"""The field of a row that stands for a line which cannot be read: why it cannot."""
MAX_CELL = 2**27
"""Characters of a table's cell; Python's own limit is 131,072."""

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".csv", ".tsv", ".parquet")


def rows_of_file(name: str, key: str = "dataset.path", split: str = "test") -> list[Row]:
    """The rows of the file or folder `name`, which `key` of the configuration gave. split: which of
    a folder's."""
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder_rows(path, f"{key}={name}", split)
    refuse(
        {
            f"{key}={name} is not a file or folder": not path.is_file(),
            f"{key}={name} ends in {path.suffix!r}; use one of {', '.join(SUFFIXES)}": (
                not path.name.endswith(SUFFIXES)
            ),
        }
    )
    with refusing(Exception, f"{key}={name} cannot be read: {{error}}"):
        if path.suffix == ".parquet":
            return _parquet_rows(path)
        separator = {".csv": ",", ".tsv": "\t"}.get(path.suffix)
        return _table_rows(path, separator) if separator else _json_rows(path)


def _folder_rows(path: Path, name: str, split: str) -> list[Row]:
    """The rows of what `save_to_disk` of datasets wrote, of one set or of several splits, or of a
    folder of parquet files, whose splits are folders or the beginnings of names
    (`test-00000-of-00001.parquet`), as on the hub."""
    import datasets

    with refusing(Exception, f"{name} cannot be read: {{error}}", but=InvalidInput):
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            saved = datasets.load_from_disk(path)
            return list(_split_of(saved, name, split) if isinstance(saved, dict) else saved)
        files: dict[str, list[Path]] = {}
        for file in sorted(path.rglob("*.parquet")):
            files.setdefault(_split_name(file.relative_to(path)), []).append(file)
        if not files:
            raise InvalidInput(
                f"{name} holds no data set; give a folder that save_to_disk wrote, one with "
                ".parquet files, or a file"
            )
        return [row for file in _split_of(files, name, split) for row in _parquet_rows(file)]


def _split_name(file: Path) -> str:
    """Of a parquet file within its folder: "test" of test-00000-of-00001.parquet, test.parquet and
    test/0.parquet."""
    begins = re.match(r"[A-Za-z]\w*?(?=[-.]|$)", file.stem)
    inside = [folder for folder in file.parts[:-1] if folder != "data"]
    return inside[-1] if inside else begins[0] if begins else ""


def _split_of(splits: Mapping[str, T], name: str, split: str) -> T:
    if len(splits) == 1:
        return next(iter(splits.values()))
    if split not in splits:
        raise InvalidInput(
            f"{name} has no split {split!r}; use dataset.split={' or '.join(map(str, splits))}"
        )
    return splits[split]


def rows_of_hub(name: str, subset: str | None, split: str) -> list[Row]:
    """The rows of one split of a data set of the hub; without a network, those of an earlier
    download."""
    import datasets

    with reached(name, "dataset") as online:
        try:
            return list(datasets.load_dataset(name, subset, split=split))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if not online:
                reason = "the hub cannot be reached, and no copy lies in this machine's cache"
            raise InvalidInput(
                f"cannot load the data set {name} ({reason}); check the name, your network and, "
                "for gated data, `hf auth login`, or give a local copy: dataset.path=FILE"
            ) from error


def _json_rows(path: Path) -> list[Row]:
    data = path.read_bytes()
    text = _text(gzip.decompress(data) if path.suffix == ".gz" else data)
    if path.suffix == ".json":
        # also numbers of thousands of digits, and brackets in brackets
        with refusing((ValueError, RecursionError), "it is not JSON: {error}"):
            rows = json.loads(text, object_pairs_hook=_named_once)
        if not isinstance(rows, list):
            raise InvalidInput(
                f"it holds a {type(rows).__name__}; a .json data set is a list of objects"
            )
        return rows
    rows = []
    for line in filter(str.strip, text.split("\n")):  # other separators may stand inside a string
        try:
            rows.append(json.loads(line, object_pairs_hook=_named_once))
        except (ValueError, RecursionError) as error:
            rows.append({UNREADABLE: f"the line is not JSON: {error}"})
    return rows


def _text(data: bytes) -> str:
    try:
        text = data.decode(encoding="utf-8-sig")
        why = "it holds the byte 0" if "\0" in text else ""
    except UnicodeDecodeError as error:
        why = str(error)
    if why:
        raise InvalidInput(f"it is not UTF-8 text ({why}); convert it, as with iconv -t utf-8")
    return text


def _named_once(pairs: list[tuple[str, Any]]) -> Row:
    """An object of JSON, where the last of two equal names would win without a word."""
    row: Row = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"the field {name!r} stands there twice; leave one out")
        row[name] = value
    return row


def _table_rows(path: Path, separator: str) -> list[Row]:
    """Every cell as the text that it is, but for blanks before it: "None" may be a choice, "007" an
    answer. A line whose number of fields is not the header's cannot be read: which of its parts
    belong together is not known."""
    csv.field_size_limit(MAX_CELL)
    lines = csv.reader(
        io.StringIO(_text(path.read_bytes()), newline=""),
        delimiter=separator,
        strict=True,
        skipinitialspace=True,  # "question, answer" names the field "answer"
    )
    header = [name.strip() for name in next(filter(None, lines), [])]
    check_once(map(repr, filter(None, header)), "columns", "give each a name of its own")
    rows: list[Row] = []
    while True:
        number = lines.line_num + 1
        try:
            cells = next(lines, None)
        except csv.Error as error:
            if "end of data" in str(error):  # nothing is known of the lines behind it
                raise InvalidInput(f"line {number} opens a quote that nothing closes") from error
            rows.append({UNREADABLE: f"line {number} cannot be read: {error}"})
            continue
        if cells is None:
            return rows
        if not cells:  # a blank line
            continue
        if len(cells) == len(header):
            rows.append(dict(zip(header, cells, strict=True)))
        else:
            rows.append({UNREADABLE: _wrong_number(cells, header, number, separator)})


def _wrong_number(cells: list[str], header: list[str], line: int, separator: str) -> str:
    name = "comma" if separator == "," else "tab"
    return (
        f"line {line} has {number_of(len(cells), 'field')}, and the header names {len(header)} "
        f"({', '.join(header)[:80]}): put a field that holds a {name} into double quotes, and take "
        f"a {name} at the line's end out"
    )


def _parquet_rows(path: Path) -> list[Row]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()
