"""Data sets whose problems are conversations: a row's question may be a list of messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.runs.problem_loop import run
from search import Greedy, solve
from tests.helpers.engines import random_llama
from tests.helpers.records import records
from tests.helpers.runs import composed, save_rows
from tests.helpers.thinking import TURNS, thinker
from tests.search.test_conversations import CALLED, WITH_SYSTEM
from ttc import Engine, InvalidInput, Problem
from ttc.text.prompt import PromptTemplate

REFUSED = [*WITH_SYSTEM[:-1]]
ROWS: list[Any] = [
    {"talk": WITH_SYSTEM, "answer": "9"},
    {"talk": CALLED, "answer": "425"},
    {"talk": "How many?", "answer": "2"},
    {"talk": [{"role": "user", "content": "Guess."}, *WITH_SYSTEM[2:]], "answer": "9"},
    {"talk": REFUSED, "answer": "7"},
]
WORDS = ("dataset.fields.question=talk", "dataset.instruction='{question} Think.'")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tokenizer = thinker(TURNS)
    random_llama(len(tokenizer), 512, 0.3, eos=tokenizer.eos_token_id, layers=1).save_pretrained(
        tmp_path / "model"
    )
    tokenizer.save_pretrained(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", ROWS)
    return tmp_path


def test_a_run_sends_what_python_sends(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(composed(place, *WORDS, "run.dry=true"))
    shown = capsys.readouterr().out
    run(composed(place, *WORDS))
    *good, refused = sorted(records(place), key=lambda record: record["id"])
    engine = Engine.from_pretrained(place / "model", dtype="float32")
    for number, record in enumerate(good):
        talk, name = ROWS[number]["talk"], f"file-{number}"
        of_talk = isinstance(talk, list)
        problem = Problem.of_chat(talk, id=name) if of_talk else Problem(talk, name)
        template = PromptTemplate("{question} Think.")
        search = Greedy(max_tokens=3)
        result = solve(search, problem=problem, engine=engine, template=template)
        assert record["error"] is None and record["prompt"] == result.prompt
        assert [b["text"] for b in record["branches"]] == [b.text for b in result.branches]
        assert number > 2 or f" ---\n{result.prompt}" in shown
    assert "the last message is the assistant's" in refused["error"]


def test_other_earlier_turns_are_other_data(place: Path) -> None:
    run(composed(place, *WORDS))
    other = [*WITH_SYSTEM[:1], {"role": "user", "content": "What is 4 + 4?"}, *WITH_SYSTEM[2:]]
    save_rows(place / "rows.jsonl", [{"talk": other, "answer": "9"}, *ROWS[1:]])
    with pytest.raises(InvalidInput, match=r"question or gold answer of 1 of 5 solved .*: file-0"):
        run(composed(place, *WORDS))


def test_what_is_for_questions_alone_is_refused_by_name(place: Path) -> None:
    with pytest.raises(InvalidInput, match=r"dataset.pad_chars=500 is for questions, and there"):
        run(composed(place, *WORDS, "dataset.pad_chars=500"))
    with pytest.raises(InvalidInput, match=r"dataset.orders=2 is of choices"):
        run(composed(place, *WORDS, "dataset.orders=2"))


def test_a_private_run_keeps_no_words_of_a_conversation(place: Path) -> None:
    run(composed(place, *WORDS, "dataset.private=true"))
    for file in (place / "outputs" / "r").iterdir():
        assert file.is_dir() or "Be brief" not in file.read_text()
