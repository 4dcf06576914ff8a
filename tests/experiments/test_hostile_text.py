"""Commands show what a model, a data set or a file says, and nothing of it commands the
terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from experiments.cli.command import perform
from experiments.cli.tree_view import DrawnStep, drawn
from experiments.eval.compare.command import compare
from experiments.eval.compare.command import parsed as parsed_comparison
from experiments.eval.select import main as select
from experiments.runs.ask import main as ask
from experiments.runs.problem_loop import run
from experiments.runs.screen import ProgressBar, show_logged, with_progress
from tests.experiments.test_compare import problems, save
from tests.helpers.runs import composed, save_model, save_rows
from ttc.errors import InvalidInput
from ttc.results import Node

HOSTILE = ("\x1b]52;c;cm0=\x07", "\x1b[2J", "\x9b2J", "\u202e", "\u2066")
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
IN_A_NAME = "\x9b2J\u202e"
"""What a folder's name may hold."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model that writes nothing but attacks, and a data set of them."""
    save_model(tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    written = {f"{HOSTILE[i % len(HOSTILE)]}{i}": i for i in vocab.values() if i > 1}
    tokenizer["model"]["vocab"] = {word: i for word, i in vocab.items() if i < 2} | written
    file.write_text(json.dumps(tokenizer))
    row = {"question": f"2 and 2 {''.join(HOSTILE)}", "answer": HOSTILE[0]}
    save_rows(tmp_path / "rows.jsonl", [row, row])
    return tmp_path


def check(text: str, *shown: str) -> None:
    assert COMMANDS.findall(text) == []
    for part in shown:
        assert part in text


def test_a_run_shows_questions_and_an_example(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("run.show_questions=true", "run.show_example=true", "dataset.answer_kind=text")
    search = ("search=best_of_n", "search.n=3", "search.max_tokens=9", "verifier=confidence")
    run(composed(place, *more, search=search))
    said = capsys.readouterr()
    check(said.out, "One problem", r"\x1b]52;c;cm0=\x07", r"\x9b2J")
    check(said.err, r"\x1b[2J", r"\u202e")


def test_a_dry_run_shows_prompts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(composed(place, "run.dry=true", "dataset.answer_kind=text"))
    check(capsys.readouterr().out, "--- prompt of ", r"\x1b]52;c;cm0=\x07", r"\u202e")


def test_a_question_is_answered(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--model={place / 'model'}", "--search=greedy", "search.max_tokens=9"]
    monkeypatch.setattr(sys, "argv", ["ttc", "2 \x1b[2J ?", *words, "model.dtype=float32"])
    ask()
    check(capsys.readouterr().out, "answer: ")


def test_the_tree_on_a_terminal_has_rich_s_own_commands_alone() -> None:
    text = " ".join(HOSTILE)
    grown = DrawnStep(Node(1, 0, [0], text, score=0.5), text, "growing")
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    console.print(drawn(text, [DrawnStep(Node(0, None, [], ""), "", "root"), grown]))
    shown = re.sub("\x1b\\[[0-9;]*m", "", out.getvalue())
    check(shown, r"\x1b]52;c;cm0=\x07", r"\x1b[2J", r"\x9b2J", r"\u202e", r"\u2066")


def test_a_comparison_and_a_selection_name_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = save(tmp_path, f"a{IN_A_NAME}", problems([1, 0]))
    other = save(tmp_path, "b", problems([0, 1]), search__n=HOSTILE[0])
    compare(parsed_comparison([first, other, "--settings"]))
    check(capsys.readouterr().out, r"a\x9b2J\u202e", r"\x1b]52;c;cm0=\x07")
    monkeypatch.setattr(sys, "argv", ["select", first])
    select()
    check(capsys.readouterr().out, r"a\x9b2J\u202e")


def test_errors_and_what_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise InvalidInput(f"row 3 is {HOSTILE[0]}")

    with pytest.raises(SystemExit) as end:
        perform(refuse, f"a \udcff {HOSTILE[1]}")
    assert end.value.code == r"error: row 3 is \x1b]52;c;cm0=\x07"
    assert capsys.readouterr().err == "starting: a \\udcff \\x1b[2J\n"


def test_progress_and_what_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(with_progress([1, 2], HOSTILE[0], every_s=0.0)) == [1, 2]
    show_logged()
    logging.getLogger("ttc").warning("a template says %s", HOSTILE[1])
    progress = ProgressBar(HOSTILE[1], 1, {}, None, out=sys.stderr)
    progress.note(HOSTILE[2])
    check(capsys.readouterr().err, r"\x1b]52;c;cm0=\x07: 0 of 2", r"says \x1b[2J", r"\x9b2J")
