"""Programs need no temporary files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ttc.execution.programs import run_program


@pytest.fixture
def no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))


@pytest.mark.usefixtures("no_temporary_files")
def test_programs_need_no_temporary_files() -> None:
    outcome = run_program("print(input()[::-1])", "abc\n")
    assert (outcome.error, outcome.value) == (None, "cba\n")
