"""The folder of a run, as it is read again: for comparing, merging, exporting and fitting."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.runs.config_values import as_dict, flat
from experiments.runs.fingerprint import UNUSABLE, data_fingerprint
from experiments.runs.records import read_json, read_records
from ttc.errors import InvalidInput
from ttc.protocols import Problem

NEEDED = ("id", "correct", "error", "branches", "usage")
"""What every version has written into a record."""
TYPES = {"correct": bool, "error": str | None, "branches": list, "usage": dict}


@dataclass(frozen=True)
class Run:
    """settings: its configuration. made_from: its fingerprint.json, {} in old runs."""

    folder: Path
    settings: dict[str, Any]
    records: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    made_from: dict[str, dict[str, str]] = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Raises InvalidInput for a folder that is not that of a run, and for records of another
        kind."""
        for name in ("config.yaml", "records.jsonl"):
            if not (folder / name).is_file():
                what = f"holds no {name}" if folder.is_dir() else "is no folder"
                raise InvalidInput(
                    f"{folder} {what}; give folders of runs, as outputs/NAME, with a problem done"
                )
        config = folder / "config.yaml"
        try:
            settings = as_dict(OmegaConf.load(config))
        except (
            OmegaConfBaseException,
            YAMLError,
            OSError,
            RecursionError,
            ValueError,
            TypeError,
            AttributeError,
        ) as error:
            raise InvalidInput(
                f"{config} cannot be read ({str(error).splitlines()[0]}); restore it"
            ) from error
        file = folder / "records.jsonl"
        records = read_records(file)[0]
        if not records:
            raise InvalidInput(
                f"{file} holds no problem yet; wait for the run, or leave the folder out"
            )
        for number, record in enumerate(records.values(), 1):
            if missing := [name for name in NEEDED if name not in record]:
                raise InvalidInput(
                    f"{file}, record {number} has no {' and no '.join(missing)}: another version "
                    "or program wrote it, so it cannot be compared; run again under another "
                    "run.name"
                )
            if wrong := [
                name for name, types in TYPES.items() if not isinstance(record[name], types)
            ]:
                raise InvalidInput(
                    f"{file}, record {number} is damaged: {wrong[0]} is {record[wrong[0]]!r:.60}"
                )
        return cls(
            folder,
            settings,
            records,
            read_json(folder / "summary.json", {}),
            read_json(folder / "fingerprint.json", {}),
        )

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings as dotted keys."""
        return flat(self.settings)

    @property
    def verifier(self) -> dict[str, Any]:
        return self.settings.get("verifier") or {}

    @cached_property
    def problems(self) -> dict[str, str | None]:
        """A mark of each problem's question and gold answer; None where the records do not tell."""
        known = self.made_from.get("data", {})
        return {name: known.get(name) or self._mark(name) for name in self.records}

    def _mark(self, name: str) -> str | None:
        record = self.records[name]
        question, gold = record.get("question"), record.get("gold")
        if question is None:
            return UNUSABLE if record["error"] and gold is None else None
        return data_fingerprint([Problem(question, name, gold)], [])[name]

    @property
    def left(self) -> list[str]:
        """The problems that the run has not come to, as it was stopped or goes on."""
        return [name for name in self.made_from.get("data", {}) if name not in self.records]
