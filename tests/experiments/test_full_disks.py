"""Disks that are full and folders that cannot be written: a line that names them and the way
out."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from experiments.cli.refusals import reason
from experiments.cli.temporary import temporary_folder
from experiments.runs.sweep import JobOutcome, Outcomes
from ttc import TTCError

WAY = r"cannot write temporary files to .* \(.*\); make room there, or .* TMPDIR=/big/folder"


@pytest.fixture
def no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))


@pytest.mark.usefixtures("no_temporary_files")
def test_a_folder_for_temporary_files_that_is_missing_is_named() -> None:
    with pytest.raises(TTCError, match=WAY), temporary_folder():
        pass
    with pytest.raises(TTCError, match=WAY), Outcomes.kept(["search=greedy"]):
        pass


def test_a_sweep_whose_folder_went_away_names_it(tmp_path: Path) -> None:
    outcomes = Outcomes(tmp_path / "gone")
    with pytest.raises(TTCError, match=WAY):
        outcomes.begin(0, tmp_path)
    with pytest.raises(TTCError, match=WAY):
        outcomes.add(0, JobOutcome([], "an error", None))


def test_a_full_disk_without_a_files_name_is_a_line() -> None:
    text = reason(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert text is not None and "No space left" in text and "make room" in text
