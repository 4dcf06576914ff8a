"""What a run says of a switch at its start, and counts of it at its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.runs.orders import same_choices, with_choices
from experiments.runs.problem_loop import run
from tests.helpers.runs import composed, save_rows
from ttc.results import Problem

LONG = ("search=self_consistency", "search.n=2", "search.max_tokens=16", "dataset.limit=2")


REWORDS = ("search=diverse_prompts", 'search.phrasings=["{question}","Question : {question}"]')


@pytest.mark.few
@pytest.mark.parametrize(
    ("sharing", "search", "said"),
    [
        ("similar", ("search=best_of_n", "search.n=2"), True),
        ("exact", ("search=best_of_n", "search.n=2"), False),
        ("similar", REWORDS, False),
    ],
)
def test_a_search_that_never_rewords_has_no_use_for_similar_prompts(
    place: Path, capsys: pytest.CaptureFixture[str], sharing: str, search: Any, said: bool
) -> None:
    run(composed(place, f"sharing={sharing}", "search.max_tokens=3", search=search))
    assert ("sharing=similar does nothing" in capsys.readouterr().err) is said


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


@pytest.mark.parametrize(
    ("choices", "letters"),
    [
        (["7", "7 ", "8", "9"], ["B"]),
        (["Yes", "no", "yes", "No"], ["C", "D"]),
        (["7", "77", "8", "9"], []),
        (["a\nline", "b", "a line", "c"], ["C"]),
    ],
)
def test_choices_of_the_same_text_are_found(choices: list[str], letters: list[str]) -> None:
    lettered = dict(zip("ABCD", choices, strict=True))
    question = with_choices("Which?\n(as (A) or (B))", lettered)
    assert same_choices(Problem(question, "q", "A", {"choices": "ABCD"})) == letters
    assert same_choices(Problem(question, "q", "A")) == []


def test_a_run_says_which_questions_have_choices_of_the_same_text(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"question": "2 + 5?", "choices": {"label": ["A", "B"], "text": ["7", "7 "]}},
        {"question": "2 + 6?", "choices": {"label": ["A", "B"], "text": ["7", "8"]}},
    ]
    save_rows(place / "rows.jsonl", [{**row, "answerKey": "A"} for row in rows])
    run(composed(place, "dataset.reader=arc_challenge", "dataset.answer_kind=choice"))
    said = capsys.readouterr().err
    assert "1 question with two choices of the same text" in said
