"""ProcessBench's samples: solutions in steps, and which step is the first wrong one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.runs.rows import SUFFIXES, Row, rows_of_file, rows_of_hub
from ttc.errors import InvalidInput, number_of
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
    if limit is not None and limit < 1:
        raise InvalidInput(f"processbench.limit={limit} must be at least 1, or null for all")
    samples = [_sample(row, number) for number, row in enumerate(_rows(data), 1)]
    twice = [name for name, count in Counter(s.id for s in samples).items() if count > 1]
    if twice:
        raise InvalidInput(f"the id {twice[0]!r} comes twice; give each part once")
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
    def refused(what: str) -> InvalidInput:
        return InvalidInput(
            f"processbench.data, row {number}: {what}; give ProcessBench's own files, with the "
            f"fields {', '.join(FIELDS)}"
        )

    if not isinstance(row, dict) or (missing := [name for name in FIELDS if name not in row]):
        raise refused(f"there is no {missing[0]}" if isinstance(row, dict) else "it is no object")
    steps = row["steps"]
    label = row["label"]
    name = row["id"]
    if not isinstance(steps, list) or not steps or not all(isinstance(s, str) for s in steps):
        raise refused(f"steps is {steps!r:.60}, no list of texts")
    if type(label) is not int or not -1 <= label < len(steps):
        raise refused(
            f"label is {label!r}, no index of its {number_of(len(steps), 'step')}, nor -1"
        )
    part = str(name).rpartition("-")[0]
    if part not in PARTS:
        raise refused(f"the id {name!r} is none of {', '.join(PARTS)}, as gsm8k-0")
    for text in (row["problem"], *steps):
        check_text(text, "the text")
    return LabelledSample(name, part, row["problem"], tuple(steps), label)
