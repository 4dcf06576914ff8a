"""`python -m experiments.paper`: the tables of both papers, their deviations, and the command line."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from experiments.paper import headinfer, lbs

GIB = 2**30


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """What `python -m experiments.paper` does, in this process. Returning is exit status 0."""
    monkeypatch.setattr(sys, "argv", ["experiments.paper", *arguments])
    runpy.run_module("experiments.paper", run_name="__main__")


def test_lbs_prints_figure_7(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "lbs.json"
    run(monkeypatch, "lbs", "--json", str(out))
    printed = capsys.readouterr().out
    assert "## OPT-6.7B, LLaMA-2-7B, Qwen-7B: 32 layers" in printed
    assert "| 64 | token by token | 53,012 | 100.0% | 53,012 | 100.0% | 53,012 |" in printed
    assert "| 64 | steps of 32 | 2,010 | 3.8% | 2,052 | 3.9% | 2,052 |" in printed
    assert "| 64 | steps of 128 | 480.0 | 0.9% | 540.0 | 1.0% | 540 |" in printed
    assert "| 4 | steps of 32 | 125.6 | - | 0.0 | - | - |" in printed
    assert json.loads(out.read_text()) == lbs.rows()


def test_lbs_rows_cover_the_figure_and_agree_with_the_paper() -> None:
    rows = lbs.rows()
    assert len(rows) == 3 * 5 * 4  # models, beams, token by token and three step lengths
    stated = [row for row in rows if row["paper_gib"] is not None]
    assert len(stated) == 4
    assert all(round(row["end_bytes"] / GIB) == row["paper_gib"] for row in stated)


def test_headinfer_prints_five_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "headinfer.json"
    run(monkeypatch, "headinfer", "--json", str(out))
    printed = capsys.readouterr().out
    assert all(f"## Table {table}: " in printed for table in (9, 10, 11, 12, 13))
    assert (
        "| headwise | 14.96 / 15.08 (-0.8%) | 3.906 / 3.91 (-0.1%) | 0.625 / 0.63 (-0.8%) "
        "| 19.49 / 19.61 (-0.6%) | 500 / 500 (+0.0%) |"
    ) in printed
    assert json.loads(out.read_text()) == headinfer.rows()


def test_headinfer_explains_exactly_the_deviations_over_two_percent() -> None:
    rows = headinfer.rows()
    assert len(rows) == 5 * 5 + 3 * 5 + 2 * 5 * 4 + 5 * 5  # Tables 11 and 12 print no total KV
    for row in rows:
        assert row["difference"] == pytest.approx(row["ours_bytes"] / GIB / row["paper_gib"] - 1)
        assert bool(row["why"]) == (abs(row["difference"]) > 0.02), row
    deviating = {(row["table"], row["quantity"]) for row in rows if row["why"]}
    parts = {(10, "weights"), (10, "kv"), (10, "total_kv"), (10, "activation"), (11, "activation"), (12, "activation")}
    assert deviating == parts | {(table, "total") for table in (10, 11, 12)}


def test_the_arithmetic_behind_the_explanations() -> None:
    cells = {(row["table"], row["method"], row["quantity"]): row for row in headinfer.rows()}
    for table in (11, 12):
        activation = cells[table, "standard", "activation"]
        assert activation["paper_gib"] * GIB == 2 * activation["ours_bytes"]
    printed = {key[1:]: row["paper_gib"] for key, row in cells.items() if key[0] == 10}
    assert round(32 * 1_296_000 * 8 * 128 * 2 * 2 / GIB, 2) == printed["standard", "kv"]
    assert round(printed["standard", "kv"] / 32, 2) == printed["standard", "activation"]
    assert round(4.5e9 * 4 / GIB, 1) == pytest.approx(printed["standard", "weights"], abs=0.1)


def test_without_an_argument_it_lists_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch)
    printed = capsys.readouterr().out
    assert "lbs" in printed and "headinfer" in printed


def test_an_unknown_paper_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as exit_status:
        run(monkeypatch, "newspaper")
    assert exit_status.value.code == 2
