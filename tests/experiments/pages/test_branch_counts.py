"""How thoughts and branches end is told alike by every table and page."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.eval.cells import Cell
from experiments.eval.compare.rows import load_rows
from experiments.eval.compare.show import comparison, tables
from experiments.pages.leaderboard.board import LABELS, cell_row
from experiments.pages.leaderboard.board import tables as board_tables
from experiments.runs.finished import FinishedRun
from experiments.runs.problem_loop import run
from experiments.runs.summary import counts_line
from tests.experiments.pages.test_view import written
from tests.experiments.test_branch_counts import LIMIT, SEARCH, save_circling
from tests.helpers.records import records
from tests.helpers.runs import composed, save_rows


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("settings", "answer", "branch", "counts", "advice"),
    [
        ([], "7", ("looped", True), {"looped": 8}, "100% of branches looped: raise search.temp"),
        (
            ["search.stop_loops=false"],
            "7",
            ("limit", False),
            {"thoughts_closed_by_limit": 8},
            "100% of branches thoughts closed by limit: raise search.thinking_tokens",
        ),
        (
            ["search.stop_loops=false", "search.thinking_tokens=null"],
            "7",
            ("cut", False),
            {"no_answer_read": 8, "without_an_end": 8, "thoughts_cut": 8},
            "100% of branches thoughts cut: raise search.max_tokens, or set search.thinking_tokens",
        ),
        (
            [],
            "",
            ("looped", True),
            {"no_answer_read": 8, "without_an_end": 8, "looped": 8},
            "100% of branches looped: raise search.temperature",
        ),
    ],
    ids=["looped", "limit", "cut", "looped twice"],
)
def test_how_thoughts_end_is_counted_and_shown_everywhere(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    answer: str,
    branch: tuple[str, bool],
    counts: dict[str, int],
    advice: str,
) -> None:
    save_circling(tmp_path / "model", answer)
    save_rows(tmp_path / "rows.jsonl", [{"question": f"{i} ?", "answer": "7"} for i in range(2)])
    summary = run(composed(tmp_path, *settings, search=SEARCH))
    shown = capsys.readouterr().out
    for record in records(tmp_path):
        for row in record["branches"]:
            assert (row["thought_end"], row["looped"]) == branch
        if branch[0] == "looped":
            assert record["usage"]["generated_tokens"] < 4 * LIMIT * 2
    told = {name: n for name, n in summary["branches"].items() if n}
    assert told == {"count": 8, **counts}
    words = counts_line(summary["branches"])
    assert words in shown and advice in shown
    folder = tmp_path / "outputs" / "r"
    figures = comparison(load_rows([folder]))
    assert figures["rows"][0]["branches"] == summary["branches"]
    assert f"branches: {words}" in tables(figures)[0].markdown()
    cell = cell_row(Cell("a", dict.fromkeys(LABELS, "x"), 0, []), FinishedRun.load(folder))
    assert cell["branches"] == summary["branches"]
    assert f"branches: {words}" in board_tables([cell])[-1].markdown()
    assert written(folder)[1]["summary"]["branches"] == summary["branches"]
