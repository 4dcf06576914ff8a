"""Folders of runs whose files were damaged: the file is named in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.runs.finished import FinishedRun
from experiments.runs.records import RunFolder, run_folder
from tests.experiments.test_compare import problems, save
from tests.helpers.runs import composed
from ttc import InvalidInput, TTCError


def test_a_file_where_a_runs_folder_would_be_is_named(tmp_path: Path) -> None:
    config = composed(tmp_path)
    folder = run_folder(config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file")
    with pytest.raises(TTCError, match="a file has the name of a folder on this path; move it"):
        RunFolder(config)


def test_records_of_a_folder_that_cannot_be_locked_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(tmp_path)
    record = {"id": "a", "correct": True, "error": None, "branches": [], "usage": {}}
    folder = run_folder(config)
    folder.mkdir(parents=True)
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n")

    def read_only(*_: Any, **__: Any) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("filelock.FileLock.acquire", read_only)
    with pytest.raises(TTCError, match=r"what was written so far is safe \(1 record\)"):
        RunFolder(config)


DAMAGES: list[tuple[str, str, str]] = [
    ("config.yaml", "model: {name: m}", "config.yaml is damaged: 'run'"),
    ("records.jsonl", "{torn\n{}\n", "records.jsonl, line 1 is damaged; restore it"),
    ("records.jsonl", '{"id": "a"}\n', "line 1 has no correct and no error"),
    ("records.jsonl", "", "records.jsonl holds no problem yet"),
]


@pytest.mark.parametrize(("name", "text", "message"), DAMAGES)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    folder = Path(save(tmp_path, "r", problems([1, 0])))
    (folder / name).write_text(text)
    with pytest.raises(InvalidInput, match=re.escape(message)):
        FinishedRun.load(folder)
