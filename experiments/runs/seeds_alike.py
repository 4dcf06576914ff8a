"""A search that draws nothing gives every seed the same results, so the runs of a sweep that differ
in their seed alone are solved once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from experiments.cli.output import say
from experiments.cli.temporary import temporary_errors
from experiments.runs.reading import read_records
from experiments.runs.summary import failed


@contextmanager
def alone(place: Path, config: DictConfig, inputs: dict[str, dict[str, str]]) -> Iterator[Path]:
    """The note of runs that differ in their seed alone, held by one at a time; others wait until it
    ends, however it does. place: a folder that the processes of a sweep have in common."""
    note = place / f"{_key(config, inputs)}.solved"
    lock = FileLock(note.with_suffix(".lock"))
    with temporary_errors(place):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            say("waiting for a run that differs in its seed alone, to copy its records")
            lock.acquire()
    try:
        yield note
    finally:
        lock.release()


def twin_of(note: Path) -> Path | None:
    """The folder of the run that is done, with another seed and nothing else that differs."""
    if not note.exists():
        return None
    folder = Path(os.fsdecode(note.read_bytes()))
    return folder if (folder / "records.jsonl").is_file() else None


def remember(note: Path, folder: Path) -> None:
    """The run of this folder is done: another one may have its records."""
    with temporary_errors(note.parent):
        note.write_bytes(os.fsencode(folder))


def records_for_any_seed(folder: Path) -> list[dict[str, Any]]:
    return [
        record
        for record in read_records(folder / "records.jsonl")[0].values()
        if not failed(record) and record["stopped"] != "max_wall_s"
    ]


def _key(config: DictConfig, inputs: dict[str, dict[str, str]]) -> str:
    settings: Any = OmegaConf.to_container(config, resolve=True)
    for name in ("seed", "name", "output_dir"):
        del settings["run"][name]
    text = json.dumps([settings, inputs], sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()
