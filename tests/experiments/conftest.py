"""Known settings are registered once in a process and not copied for each configuration, which
would take most of the time of composing one."""

from functools import cache
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from experiments.runs import schema
from tests.helpers.runs import ROWS, save_model, save_rows

schema.register = cache(schema.register)
ConfigStore.__deepcopy__ = lambda store, _: store


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a small model and four rows."""
    save_model(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", ROWS)
    return tmp_path
