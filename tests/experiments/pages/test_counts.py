"""Leaderboards count as comparisons, selections and summaries do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.eval.cells import Cell
from experiments.eval.compare.rows import load_rows
from experiments.eval.compare.show import comparison, tables
from experiments.eval.select import load, report, score
from experiments.eval.select import parsed as parsed_selection
from experiments.pages.leaderboard.board import cell_row
from experiments.runs.finished import FinishedRun
from experiments.runs.summary import summarise
from search.selection import all_rules
from tests.experiments.test_compare import compared, record, save


def test_every_table_counts_alike(tmp_path: Path) -> None:
    """Unanswered, failed, unusable, ended by a budget, and not come to."""
    unanswered = record("p2", 0, 1)
    unanswered["answer"] = unanswered["branches"][0]["answer"] = None
    done = [
        record("p0", 1, 0),
        record("p1", 1, 1, error="VerifierError: no"),
        unanswered,
        record("p3", 0, error="KeyError: answer", branches=[], correct=False),
        record("p4", 1, 1, error="BudgetExceeded: 9 tokens"),
    ]
    for one in done:
        one["timing"] |= {"host_to_device_bytes": 0, "device_to_host_bytes": 0}
    name = save(tmp_path, "a", done)
    (tmp_path / "a" / "fingerprint.json").write_text(
        json.dumps({"data": {f"p{i}": "mark" for i in range(7)}})
    )
    summary = summarise(done)
    row = compared(tmp_path, name)["rows"][0]
    scored = {(r["rule"], r["n"]): r["accuracy"] for r in score(load(Path(name)), all_rules())}
    cell = cell_row(Cell("a", {}, 0, []), FinishedRun.load(Path(name)))
    assert summary["accuracy"] == row["accuracy"] == cell["accuracy"] == 2 / 5
    assert summary["accuracy_strict"] == row["accuracy_strict"] == cell["accuracy_strict"] == 2 / 5
    assert summary["failures"] == row["failed"] == cell["failed"] == 2
    assert summary["pass_at_k"] == row["pass_at_k"] == cell["pass_at_k"]
    assert summary["maj_at_k"] == row["maj_at_k"] == cell["maj_at_k"]
    assert summary["pass_at_k"] == {"1": pytest.approx(2 / 5), "2": 3 / 5}
    assert scored["any right", 1] == 2 / 5 and scored["any right", 2] == summary["pass_at_k"]["2"]
    assert scored["majority", 1] == cell["pred_maj@1"] == 2 / 5
    assert row["left"] == cell["left"] == 2
    said = "problems left to solve, which count nowhere: 2"
    assert said in tables(comparison(load_rows([Path(name)])))[0].markdown()
    assert said in report(parsed_selection([name]))
