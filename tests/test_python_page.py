"""All that docs/python.md shows runs as it stands there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.engines import numbers_engine
from ttc import Engine

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
TRACKERS = {"import wandb": "wandb", "import mlflow": "mlflow", "tensorboard": "tensorboard"}


def tracker_of(block: str) -> str | None:
    return next((package for mark, package in TRACKERS.items() if mark in block), None)


PAGES_OWN = [block for block in BLOCKS if tracker_of(block) is None]
RECIPES = [block for block in BLOCKS if tracker_of(block) is not None]


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A small random model has the place of the one that the page names."""
    monkeypatch.setattr(Engine, "from_pretrained", lambda *args, **options: numbers_engine())
    monkeypatch.chdir(tmp_path)


def test_the_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in PAGES_OWN:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(PAGES_OWN) > 10 and (tmp_path / "result.json").exists()
    assert names["engine"].kv_bytes() == 0


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(tracker_of(recipe)))
def test_a_recipe_writes_to_its_tracker(
    recipe: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tracker_of(recipe)
    pytest.importorskip(str(package))
    monkeypatch.setenv("WANDB_MODE", "offline")
    place = (
        f"sqlite:///{tmp_path}/mlflow.db"
        if find_spec("sqlalchemy")
        else (tmp_path / "mlruns").as_uri()
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its small distribution has no database
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[0], str(PAGE), "exec"), names)
    exec(compile(recipe, str(PAGE), "exec"), names)
    assert any(file.is_file() for file in tmp_path.rglob("*"))


def test_there_is_a_recipe_for_each_tracker() -> None:
    assert [tracker_of(recipe) for recipe in RECIPES] == ["wandb", "mlflow", "tensorboard"]
    assert all(recipe.count("\n") <= 16 for recipe in RECIPES)
