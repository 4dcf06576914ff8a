"""What is counted of all branches is in the summary and shown wherever a run is, and a resumed run
of an older version is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.eval.compare.rows import load_rows
from experiments.eval.compare.show import comparison
from experiments.runs.problem_loop import run
from experiments.runs.summary import branch_counts, counts_line, summarise
from experiments.runs.summary_tables import sweep_table, table
from tests.helpers.records import candidate, made_up, records
from tests.helpers.runs import composed, save_rows
from tests.helpers.thinking import OPENING, TURNS, circling, thinker

LIMIT = 64
SEARCH = (
    "search=self_consistency", "search.n=4", "search.max_tokens=60",
    f"search.thinking_tokens={LIMIT}",
)  # fmt: skip


def save_circling(folder: Path, answer: str) -> None:
    tokenizer = thinker(OPENING, plain=("<think>", "</think>"))
    circling("abcdefghijk", tokenizer, answer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.slow
def test_records_of_older_versions_go_on_and_are_counted(tmp_path: Path) -> None:
    """They do not say how a thought ended, and their configuration has no setting for loops."""
    save_circling(tmp_path / "model", "7")
    save_rows(tmp_path / "rows.jsonl", [{"question": f"{i} ?", "answer": "7"} for i in range(2)])
    run(composed(tmp_path, "dataset.limit=1", search=SEARCH))
    folder = tmp_path / "outputs" / "r"
    (old,) = records(tmp_path)
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
    assert records(tmp_path)[0] == old
    figures = comparison(load_rows([folder]))
    assert figures["rows"][0]["branches"] == summary["branches"]


def test_branches_that_a_search_let_go_of_count_too(tmp_path: Path) -> None:
    save_circling(tmp_path / "model", "7")
    save_rows(tmp_path / "rows.jsonl", [{"question": f"{i} ?", "answer": "7"} for i in range(2)])
    beam = ("search=beam_search", "search.beam_size=1", "search.max_steps=1", *SEARCH[2:])
    steps = [word.replace("max_tokens", "step_tokens") for word in beam]
    summary = run(composed(tmp_path, "verifier=confidence", search=steps))
    assert all(record["pruned"] == {"count": 3, "looped": 3} for record in records(tmp_path))
    assert summary["branches"] == {
        "count": 8, "no_answer_read": 0, "without_an_end": 0, "tied_votes": 0, "looped": 8,
        "thoughts_closed_by_limit": 0, "thoughts_cut": 0,
    }  # fmt: skip
    again = run(composed(tmp_path, "verifier=confidence", search=steps))
    assert again["branches"] == summary["branches"]
    figures = comparison(load_rows([tmp_path / "outputs" / "r"]))
    assert figures["rows"][0]["branches"] == summary["branches"]


@pytest.mark.slow
def test_unknown_marks_are_counted_of_branches_that_were_let_go_of_too(tmp_path: Path) -> None:
    """The model's tokenizer knows no marks, and all of its branches write one."""
    tokenizer = thinker(TURNS)
    circling("ab[/THINK]7:", tokenizer, "8").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", [{"question": "How many?", "answer": "8"}])
    beam = ("search=beam_search", "search.beam_size=1", "search.max_steps=1")
    words = ("verifier=confidence", "model.thinking_marks=false", "run.name=named")
    summary = run(composed(tmp_path, words[0], search=(*beam, "search.step_tokens=60")))
    (record,) = records(tmp_path)
    assert record["pruned"]["thoughts_unknown"] == record["pruned"]["count"] == 3
    assert summary["branches"]["thoughts_unknown"] == summary["branches"]["count"] == 4
    shown = table("r", summary | {"seconds": 0.0})
    assert "4 in all, 4 thoughts unknown" in shown
    assert "100% of branches thoughts unknown: name the marks" in shown
    told = comparison(load_rows([tmp_path / "outputs" / "r"]))["rows"][0]["branches"]
    assert told == summary["branches"]
    named = run(composed(tmp_path, *words, search=(*beam, "search.step_tokens=60")))
    assert "thoughts_unknown" not in named["branches"]


def branches(*ends: tuple[str | None, str | None]) -> dict[str, Any]:
    """A record of branches, each with its answer and finish reason."""
    return made_up(*(candidate(i, a, finish_reason=end) for i, (a, end) in enumerate(ends)))


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
    early = {"pruned": {"count": 99, "early": 96, "no_answer_read": 1, "looped": 6}}
    unread, looped = advised(branches(*[good] * 3, (None, "eos")) | early, "max_tokens")
    assert unread.startswith("29% of branches no answer read")  # of the 7 that ended
    assert looped.startswith("6% of branches looped")
    (line,) = advised(branches(good, ("4", "eos")), "n")
    assert line == "100% of votes tied: raise search.n"
    assert advised(branches()) == []


def test_what_is_as_it_should_be_takes_no_line() -> None:
    record = branches(("3", "eos"), ("3", "end"))
    assert counts_line(branch_counts([record])) == ""
    summary = summarise([record]) | {"seconds": 0.0}
    assert "branches" not in table("r", summary)
    assert counts_line(branch_counts([record | {"pruned": {"count": 3, "early": 3}}])) == ""
    flawed = summarise([branches((None, None))]) | {"seconds": 0.0}
    assert "1 in all, 1 no answer read, 1 without an end" in table("r", flawed)
    text = sweep_table([(["search.n=1"], summary), (["search.n=2"], flawed)])
    assert text.count("in all") == 1 and "branches: 1 in all, 1 no answer read" in text
