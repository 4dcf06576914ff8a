"""What a run says of a switch at its start, and counts of it at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.runs.problem_loop import run
from tests.helpers.runs import ROWS, composed, save_model, save_rows

LONG = ("search=self_consistency", "search.n=2", "search.max_tokens=16", "dataset.limit=2")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_model(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", ROWS)
    return tmp_path


@pytest.mark.few(1)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_run_counts_its_act_blocks(
    place: Path, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    memory = ("memory=capture", f"memory.act_share={share}", "memory.block_tokens=4")
    summary = run(composed(place, *memory, search=LONG))
    blocks, acts = summary["blocks"], summary["act_blocks"]
    # of 2 problems 2 branches of 16 tokens each, in blocks of at most 4
    assert blocks >= 2 * 2 * 16 / 4
    assert acts == {0.0: 0, 1.0: blocks}.get(share, acts)
    assert share != 0.5 or 0.3 * blocks < acts < 0.7 * blocks
    assert f"{acts:,} of {blocks:,} blocks" in capsys.readouterr().out
    (saved,) = place.glob("outputs/**/summary.json")
    assert json.loads(saved.read_text())["act_blocks"] == acts


def test_a_run_without_such_blocks_counts_none(place: Path) -> None:
    assert "act_blocks" not in run(composed(place))
