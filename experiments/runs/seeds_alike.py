"""A search that draws nothing gives every seed the same results, so the runs of a sweep that differ
in their seed alone are solved once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from experiments.cli.output import say
from experiments.cli.temporary import temporary_errors
from experiments.runs.reading import read_fingerprint, read_provenance, read_records
from experiments.runs.records import RunFolder
from experiments.runs.summary import failed


@dataclass(frozen=True)
class SeedsAlike:
    """The note on runs that differ in their seed alone. note: the file that names the folder of one
    that is done."""

    note: Path

    @classmethod
    @contextmanager
    def alone(
        cls, place: Path, config: DictConfig, inputs: dict[str, dict[str, str]]
    ) -> Iterator[SeedsAlike]:
        """Held by one run at a time; others wait until it ends, however it does. place: a folder
        that the processes of a sweep have in common."""
        note = place / f"{_key(config, inputs)}.solved"
        lock = FileLock(note.with_suffix(".lock"))
        with temporary_errors(place):
            try:
                lock.acquire(blocking=False)
            except Timeout:
                say("waiting for a run that differs in its seed alone, to copy its records")
                lock.acquire()
        try:
            yield cls(note)
        finally:
            lock.release()

    def twin(self) -> Twin | None:
        """The run that is done, with another seed and nothing else that differs."""
        if not self.note.exists():
            return None
        folder = Path(os.fsdecode(self.note.read_bytes()))
        return Twin(folder) if (folder / "records.jsonl").is_file() else None

    def remember(self, folder: RunFolder) -> None:
        """This run is done: another one may have its records."""
        with temporary_errors(self.note.parent):
            self.note.write_bytes(os.fsencode(folder.path))


class Twin:
    """A finished run with another seed. records: those that any seed would have. fingerprint: what
    it was made from, the model that a server runs among it. made_by: its sittings."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.fingerprint = read_fingerprint(folder)
        self.made_by = [go | {"copied_from": str(folder)} for go in read_provenance(folder)]
        self.records: list[dict[str, Any]] = [
            record
            for record in read_records(folder / "records.jsonl")[0].values()
            if not failed(record) and record["stopped"] != "max_wall_s"
        ]


def _key(config: DictConfig, inputs: dict[str, dict[str, str]]) -> str:
    settings: Any = OmegaConf.to_container(config, resolve=True)
    settings["run"] = {
        name: value
        for name, value in settings["run"].items()
        if name not in ("seed", "name", "output_dir")
    }
    text = json.dumps([settings, inputs], sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()
