"""The files of examples/ run as they are, and stay short."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.helpers.engines import make_engine
from ttc import Engine

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = {
    "ask_tell.py": [],
    "beam_search.py": [],
    "choices.py": ["choices.jsonl", "1", "8"],
    "own_search.py": [],
    "sweep.py": ["2"],
}
SAYS = {
    "ask_tell.py": r"^x = 3\.\d+, score 0\.\d+, of 32 answers\nthe deepest was "
    r"improved \d+ times\n$",
    "beam_search.py": r"^Tom has .*\n(   \d\.\d\d .*\n)(   +(\d\.\d\d .*|\d+ pruned)\n)*answer: "
    r".*, from \d+ tokens\n$",
    "choices.py": r"^8 questions in choices\.jsonl\n$",
    "own_search.py": r"^(\S.*\?  answer \S+, score \d\.\d\d, after [1-3] tries\n){2}0 bytes of "
    r"keys and values",
    "sweep.py": r"^search .*\n(.{22} +[012]/2 +\d+\n){3}$",
}


def test_every_example_is_run_here_and_fits_a_screen_or_two() -> None:
    assert {file.name for file in EXAMPLES.iterdir() if file.suffix == ".py"} == set(FILES)
    for name in FILES:
        assert len((EXAMPLES / name).read_text().splitlines()) <= 100


@pytest.mark.few
@pytest.mark.parametrize("name", FILES)
def test_an_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a small model with random weights, so that it takes a moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *FILES[name]])
    monkeypatch.setattr(Engine, "from_pretrained", lambda *_, **__: make_engine(context=400))
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    said = capsys.readouterr().out
    assert re.search(SAYS[name], said), said
