"""A search that draws nothing gives every seed the same results, so the runs of one process that
differ in their seed alone are solved once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.runs.reading import read_fingerprint, read_provenance, read_records
from experiments.runs.records import RunFolder
from experiments.runs.summary import failed

_solved: dict[str, Path] = {}


def remember(config: DictConfig, inputs: dict[str, dict[str, str]], folder: RunFolder) -> None:
    """This run is done: another one that differs in its seed alone may have its records."""
    _solved[_key(config, inputs)] = folder.path


def twin_of(config: DictConfig, inputs: dict[str, dict[str, str]]) -> Twin | None:
    """The run that this process has solved with another seed and nothing else that differs."""
    folder = _solved.get(_key(config, inputs))
    file = None if folder is None else folder / "records.jsonl"
    return None if file is None or not file.is_file() else Twin(file.parent)


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
    return json.dumps([settings, inputs], sort_keys=True, default=str)
