"""The layout that docs/architecture.md promises."""

from __future__ import annotations

from pathlib import Path

import pytest

import search
import ttc
import verifiers


@pytest.mark.parametrize("package", [ttc, search, verifiers])
def test_no_file_is_longer_than_a_reader_takes_in(package: object) -> None:
    folder = Path(str(package.__file__)).parent  # type: ignore[attr-defined]
    lengths = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in folder.rglob("*.py")}
    assert lengths and {name: n for name, n in lengths.items() if n > 400} == {}
