"""Folders of runs whose files were damaged: the file is named in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.runs.finished import FinishedRun
from tests.experiments.test_compare import problems, save
from ttc import InvalidInput

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
