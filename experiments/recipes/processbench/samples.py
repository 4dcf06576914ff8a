"""ProcessBench's samples: solutions in steps, and which step is the first wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.runs.rows import SUFFIXES, Row, rows_of_file, rows_of_hub
from ttc.checks import PositiveInt, check_once, check_option
from ttc.errors import InvalidInput, number_of, refuse
from ttc.text.prompt import check_text

HUB = "Qwen/ProcessBench"
PARTS = ("gsm8k", "math", "olympiadbench", "omnimath")
FIELDS = ("id", "problem", "steps", "label")


@dataclass(frozen=True)
class LabelledSample:
    """label: the index of the first wrong step, -1 where all are right."""

    id: str
    part: str
    problem: str
    steps: tuple[str, ...]
    label: int


def load_samples(data: str | None, limit: int | None = None) -> list[LabelledSample]:
    """The samples of a file, of a folder with a file for each part, or of the hub.

    limit: so many of each part. Raises InvalidInput for rows that are none of ProcessBench's, and
    for an id that comes twice.
    """
    check_option("processbench.limit", limit, PositiveInt | None)
    samples = [_sample(row, number) for number, row in enumerate(_rows(data), 1)]
    check_once((repr(s.id) for s in samples), "samples", "give each part once")
    if not samples:
        raise InvalidInput(f"{data} holds no sample of ProcessBench")
    parts = {part: [s for s in samples if s.part == part][:limit] for part in PARTS}
    return [sample for part in parts.values() for sample in part]


def _rows(data: str | None) -> Iterator[Row]:
    if data is None:
        for part in PARTS:
            yield from rows_of_hub(HUB, None, part)
    elif (folder := Path(data).expanduser()).is_dir():
        files = [folder / f"{part}{suffix}" for part in PARTS for suffix in SUFFIXES]
        if present := [file for file in files if file.is_file()]:
            for file in present:
                yield from rows_of_file(str(file), "processbench.data")
        else:  # parquet files, the parts as splits
            for part in PARTS:
                yield from rows_of_file(data, "processbench.data", part)
    else:
        yield from rows_of_file(data, "processbench.data")


def _sample(row: Row, number: int) -> LabelledSample:
    record = row if isinstance(row, dict) else {}
    values: list[Any] = [record.get(field) for field in FIELDS]
    name, problem, steps, label = values
    texts = isinstance(steps, list) and steps and all(isinstance(s, str) for s in steps)
    count = len(steps) if texts else 0
    part = str(name).rpartition("-")[0]
    wrong = {
        "it is no object": not isinstance(row, dict),
        **{f"there is no {field}": field not in record for field in FIELDS},
        f"steps is {steps!r:.60}, no list of texts": not texts,
        f"label is {label!r}, no index of its {number_of(count, 'step')}, nor -1": (
            type(label) is not int or not -1 <= label < count
        ),
        f"the id {name!r} is none of {', '.join(PARTS)}, as gsm8k-0": part not in PARTS,
    }
    way_out = f"give ProcessBench's own files, with the fields {', '.join(FIELDS)}"
    refuse(
        {f"processbench.data, row {number}: {w}; {way_out}": is_so for w, is_so in wrong.items()}
    )
    for text in (problem, *steps):
        check_text(text, "the text")
    return LabelledSample(name, part, problem, tuple(steps), label)
