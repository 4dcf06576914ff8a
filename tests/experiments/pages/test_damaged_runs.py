"""Pages of runs whose folders were damaged in any place: made, or the file is named in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.eval.cells import Cell
from experiments.pages.leaderboard.board import cell_row, tables, write_predictions
from experiments.pages.view.command import parsed, view
from experiments.runs.finished import FinishedRun
from tests.experiments.test_damaged_runs import two_shards, works_or_names_the_folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_shards(tmp_path_factory.mktemp("runs"))


def leaderboard(folder: Path) -> None:
    found = FinishedRun.load(folder)
    cell = Cell("c", {"model": "m", "dataset": "d", "search": "s", "budget": ""}, 0, [])
    tables([cell_row(cell, found)])
    write_predictions(found, folder / "predictions.jsonl")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "command", [lambda f: view(parsed([str(f)])), leaderboard], ids=["view", "leaderboard"]
)
def test_a_damaged_run_is_named_in_a_line(
    shards: Path, command: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    works_or_names_the_folder(command, shards, tmp_path_factory)
