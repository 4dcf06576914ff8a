from pathlib import Path

import pytest

from tests.helpers.runs import ROWS, save_model, save_rows


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a small model and four rows."""
    save_model(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", ROWS)
    return tmp_path
