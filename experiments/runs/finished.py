"""The folder of a run, as it is read again: for comparing, merging, exporting and fitting."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.runs.config_values import flat
from experiments.runs.fingerprint import UNUSABLE, data_fingerprint
from experiments.runs.reading import read_fingerprint, read_records, read_settings, read_summary
from ttc.errors import InvalidInput
from ttc.results import Problem


@dataclass(frozen=True)
class FinishedRun:
    """settings: its configuration. made_from: its fingerprint.json, {} in old runs."""

    folder: Path
    settings: dict[str, Any]
    records: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    made_from: dict[str, dict[str, str]] = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> FinishedRun:
        """Raises InvalidInput for a folder that is not that of a run, and for records of another
        kind."""
        for name in ("config.yaml", "records.jsonl"):
            if not (folder / name).is_file():
                what = f"holds no {name}" if folder.is_dir() else "is no folder"
                raise InvalidInput(
                    f"{folder} {what}; give folders of runs, as outputs/NAME, with a problem done"
                )
        settings = read_settings(folder / "config.yaml")
        file = folder / "records.jsonl"
        records = read_records(file)[0]
        if not records:
            raise InvalidInput(
                f"{file} holds no problem yet; wait for the run, or leave the folder out"
            )
        return cls(folder, settings, records, read_summary(folder), read_fingerprint(folder))

    @cached_property
    def config(self) -> dict[str, Any]:
        return flat(self.settings)

    def setting(self, name: str) -> Any:
        """Raises InvalidInput where the configuration has none of that name."""
        if name not in self.config:
            raise InvalidInput(
                f"{self.folder / 'config.yaml'} has no {name}: another version wrote it, or it is "
                "damaged; run again under another run.name"
            )
        return self.config[name]

    @cached_property
    def problems(self) -> dict[str, str | None]:
        """A mark of each problem's question and gold answer; None where the records do not tell."""
        marks = self.made_from.get("data", {})
        return {name: marks.get(name) or self._mark(name) for name in self.records}

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
