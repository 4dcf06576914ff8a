"""Names that end lines or write to the terminal are shown by their codes on leaderboards."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.eval.cells import Cell
from experiments.pages.leaderboard import command as board
from experiments.pages.leaderboard.plan import Leaderboard
from tests.experiments.test_compare import problems, save
from tests.experiments.test_hostile_text import HOSTILE, check


def test_a_leaderboard_names_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell(
        "c", {"model": HOSTILE[0], "dataset": HOSTILE[1], "search": "s", "budget": ""}, 0, []
    )
    save(tmp_path, "c", problems([1, 0]))
    monkeypatch.setattr(
        "experiments.pages.leaderboard.plan.read_plan",
        lambda file: Leaderboard("b", tmp_path, [cell]),
    )
    monkeypatch.setattr(
        "experiments.eval.cells.run_cells", lambda cells: ({"c": HOSTILE[3]}, set())
    )
    board.leaderboard(board.parsed([str(tmp_path)]))
    check(capsys.readouterr().out, r"\x1b]52;c;cm0=\x07", r"\x1b[2J", r"\u202e")
