"""One question on the command line: the tree that is drawn, the answer and what it cost."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.tree import Tree

from experiments.cli.tree_view import DrawnStep, drawn, steps_of
from experiments.runs.ask import main, watched
from search import BeamSearch, BestOfN, solve
from search.config import SearchConfig
from search.options import SolveOptions
from tests.helpers.backends import FakeBackend
from tests.helpers.benches import save_tiny_model
from tests.helpers.searches import Costly
from ttc import Engine
from ttc.results import Node
from verifiers import ConfidenceVerifier


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["ttc", *words])
    main()


def test_a_question_is_answered_as_the_library_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, question = save_tiny_model(tmp_path), "What is 2 + 3?"
    words = ["--search=best_of_n", "--verifier=confidence", "--seed=3", "search.n=3"]
    settings = ("search.max_tokens=9", "model.dtype=float32")
    typed(monkeypatch, question, f"--model={folder}", *words, *settings)
    search, engine = BestOfN(n=3, max_tokens=9), Engine.from_pretrained(folder, dtype="float32")
    verifier = ConfidenceVerifier()
    right = solve(search, problem=question, engine=engine, verifier=verifier, seed=3)
    shown = capsys.readouterr().out
    assert right.best is not None and right.best.text.strip() in shown
    assert "expanded 3 branches; 27 tokens so far\n" in shown
    assert "rated 3 branches, the best with " in shown
    assert "cost:   27 generated tokens, 0 verifier tokens, 4 nodes, " in shown


def picture(tree: Tree) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(tree)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def step(
    id: int, parent: int | None, text: str, score: float | None, state: str, chosen: bool = False
) -> DrawnStep:
    return DrawnStep(Node(id, parent, [], text, score=score), text, state, chosen)


def test_the_tree_shows_what_lives_and_counts_what_was_pruned() -> None:
    steps = [
        step(0, None, "", None, "root"),
        step(1, 0, "wrong", 0.2, "pruned"),
        step(2, 0, "a first\n line", 0.9, "expanded"),
        step(3, 0, "worse", 0.1, "expanded"),  # all that came of it is gone
        step(4, 2, "same", 0.5, "finished"),
        step(5, 2, "the end", 0.9, "finished", chosen=True),
        step(6, 2, "same", 0.5, "finished"),
        step(7, 3, "lost", 0.1, "pruned"),
        step(8, 2, "on", None, "growing"),
    ]
    assert picture(drawn("What is it?", steps)) == [
        "What is it?",
        "├── 0.90 a first line",
        "│   ├── 0.90 the end (end)  <- chosen",
        "│   ├── 0.50 same (end) (2 times)",
        "│   └── on",
        "└── 2 pruned, the best with 0.20",
    ]


def test_thoughts_are_parted_from_answers() -> None:
    long = "so it may be 4, or 5, but not 6"
    steps = [
        step(0, None, "", None, "root"),
        DrawnStep(Node(1, 0, [], ""), "<think>4?", "growing", thought=9),
        DrawnStep(Node(2, 0, [], ""), f"<think>{long}</think>It is 4.", "finished", thought=46),
        step(3, 0, "It is 5.", None, "finished"),
    ]
    assert picture(drawn("What is it?", steps)) == [
        "What is it?",
        "├── (thought) <think>4?",
        "├── (thought) ... 5, but not 6</think> (answer) It is 4. (end)",
        "└── It is 5. (end)",
    ]


def test_a_terminal_shows_the_tree_while_it_grows_and_the_whole_of_it_at_the_end() -> None:
    backend = FakeBackend()
    search = BeamSearch(beam_size=2, beam_width=3, step_tokens=3, max_steps=3)
    config = SearchConfig.of(search, backend, SolveOptions(verifier=Costly(2), seed=1))
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    result = watched("12 + 3", config, backend, console)
    right = solve(search, problem="12 + 3", engine=FakeBackend(), verifier=Costly(2), seed=1)
    assert isinstance(console.file, io.StringIO)
    assert result.best is not None and right.best is not None
    assert result.best.text == right.best.text and not backend.live
    out, last = console.file.getvalue(), "\n".join(picture(drawn("12 + 3", steps_of(result))))
    assert "12 + 3" in out.partition("<- chosen")[0] and last in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--search", "nope"], "search=nope is unknown; use one of"),
        (["are", "left?"], "put the whole question into"),
    ],
)
def test_what_cannot_be_used_is_named(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=message):
        typed(monkeypatch, "How many?", *words)


@pytest.mark.slow
def test_the_default_model_finds_what_the_readme_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question = "Tom has 3 boxes of 4 apples. He eats 2. How many are left?"
    typed(monkeypatch, question, "model.dtype=float32")
    shown = capsys.readouterr().out
    assert "answer: 10\n" in shown
    assert "1,108 generated tokens, 0 verifier tokens, 61 nodes" in shown
