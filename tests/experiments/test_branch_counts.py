"""What is counted of all branches is in the summary and shown wherever a run is, and a resumed run
of an older version is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.eval.cells import Cell
from experiments.eval.compare.rows import load_rows
from experiments.eval.compare.show import comparison, tables
from experiments.eval.leaderboard.board import LABELS, cell_row
from experiments.eval.leaderboard.board import tables as board_tables
from experiments.runs.finished import Run
from experiments.runs.problem_loop import run
from experiments.runs.summary import branch_counts, shown_counts, summarise
from experiments.runs.summary_tables import sweep_table, table
from tests.experiments.test_view import written
from tests.helpers.runs import composed, save_rows
from tests.helpers.thinking import OPENING, circling, thinker

LIMIT = 64
SEARCH = (
    "search=self_consistency", "search.n=4", "search.max_tokens=60",
    f"search.thinking_tokens={LIMIT}",
)  # fmt: skip


def save_circling(folder: Path, answer: str) -> None:
    tokenizer = thinker(OPENING, plain=("<think>", "</think>"))
    circling("abcdefghijk", tokenizer, answer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def records_of(place: Path) -> list[dict[str, Any]]:
    lines = (place / "outputs" / "r" / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


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
    for record in records_of(tmp_path):
        for row in record["branches"]:
            assert (row["thought_end"], row["looped"]) == branch
        if branch[0] == "looped":
            assert record["usage"]["generated_tokens"] < 4 * LIMIT * 2
    told = {name: n for name, n in summary["branches"].items() if n}
    assert told == {"count": 8, **counts}
    words = shown_counts(summary["branches"])
    assert words in shown and advice in shown
    folder = tmp_path / "outputs" / "r"
    figures = comparison(load_rows([folder]))
    assert figures["rows"][0]["branches"] == summary["branches"]
    assert f"branches: {words}" in tables(figures)[0].markdown()
    cell = cell_row(Cell("a", dict.fromkeys(LABELS, "x"), 0, []), Run.load(folder))
    assert cell["branches"] == summary["branches"]
    assert f"branches: {words}" in board_tables([cell])[-1].markdown()
    assert written(folder)[1]["summary"]["branches"] == summary["branches"]


def test_records_of_older_versions_go_on_and_are_counted(tmp_path: Path) -> None:
    """They do not say how a thought ended, and their configuration has no setting for loops."""
    save_circling(tmp_path / "model", "7")
    save_rows(tmp_path / "rows.jsonl", [{"question": f"{i} ?", "answer": "7"} for i in range(2)])
    run(composed(tmp_path, "dataset.limit=1", search=SEARCH))
    folder = tmp_path / "outputs" / "r"
    (old,) = records_of(tmp_path)
    for row in old["branches"]:
        del row["thought_end"], row["looped"]
    (folder / "records.jsonl").write_text(json.dumps(old) + "\n")
    config = (folder / "config.yaml").read_text()
    assert "  stop_loops: null\n" in config
    (folder / "config.yaml").write_text(config.replace("  stop_loops: null\n", ""))
    summary = run(composed(tmp_path, search=SEARCH))
    assert summary["branches"] == {
        "count": 8, "no_answer_read": 0, "without_an_end": 0, "tied_votes": 0, "looped": 4
    }  # fmt: skip
    assert records_of(tmp_path)[0] == old
    figures = comparison(load_rows([folder]))
    assert figures["rows"][0]["branches"] == summary["branches"]


def branches(*ends: tuple[str | None, str | None]) -> dict[str, Any]:
    """A record of branches, each with its answer and finish reason."""
    rows = [
        {"path": [i], "answer": answer, "correct": False, "finish_reason": end}
        for i, (answer, end) in enumerate(ends)
    ]
    return {
        "correct": False,
        "error": None,
        "branches": rows,
        "usage": {"generated_tokens": 1, "verifier_tokens": 0, "prompt_tokens": 1},
        "timing": {"host_to_device_bytes": 0, "device_to_host_bytes": 0},
    }


def advised(record: dict[str, Any], *settings: str) -> list[str]:
    summary = summarise([record]) | {"seconds": 0.0}
    lines = table("r", summary, settings).splitlines()
    return [line.split(maxsplit=1)[1] for line in lines if line.split()[:1] == ["advice"]]


def test_advice_is_given_above_a_share_of_5_percent() -> None:
    good = ("3", "eos")
    assert advised(branches(*[good] * 19, ("3", None)), "max_tokens") == []
    (line,) = advised(branches(*[good] * 18, ("3", None)), "max_tokens")
    assert line == "5% of branches without an end: raise search.max_tokens"
    (line,) = advised(branches(*[good] * 3, (None, "eos")), "max_tokens")
    assert line.startswith("25% of branches no answer read: look at the texts")
    (line,) = advised(branches(good, ("4", "eos")), "n")
    assert line == "100% of votes tied: raise search.n"
    assert advised(branches()) == []


def test_what_is_as_it_should_be_takes_no_line() -> None:
    record = branches(("3", "eos"), ("3", "end"))
    assert shown_counts(branch_counts([record])) == ""
    summary = summarise([record]) | {"seconds": 0.0}
    assert "branches" not in table("r", summary)
    flawed = summarise([branches((None, None))]) | {"seconds": 0.0}
    assert "1 in all, 1 no answer read, 1 without an end" in table("r", flawed)
    text = sweep_table([(["search.n=1"], summary), (["search.n=2"], flawed)])
    assert text.count("in all") == 1 and "branches: 1 in all, 1 no answer read" in text
