"""A module that a test rewrites, to see what the hash of its code tells."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from experiments.runs.provenance import code_hash

NAME = "measured_code"


def importable_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module `measured_code` that can be imported and is not yet written."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return folder / f"{NAME}.py"


def written(file: Path, text: str) -> str:
    """The hash of the module with this text."""
    file.write_text(text)
    importlib.invalidate_caches()
    code_hash.cache_clear()
    return code_hash(NAME)
