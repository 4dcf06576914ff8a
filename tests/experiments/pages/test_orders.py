"""A leaderboard counts a question once, however many orders of its choices were asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.pages.leaderboard.board import predictions_right
from experiments.runs.finished import FinishedRun
from tests.experiments.test_compare import save
from tests.experiments.test_orders import in_orders


def test_predictions_take_orders_as_they_are(tmp_path: Path) -> None:
    marks = [[1, 1, 0, 1], [0]]
    folder = Path(save(tmp_path, "r", in_orders(marks)))
    assert predictions_right(FinishedRun.load(folder))["pred_maj@1"] == pytest.approx(0.375)
