"""`python -m experiments.heads`: what it refuses before a model is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.fit.heads import main


@pytest.mark.parametrize(
    ("out", "words", "message"),
    [
        ("x.json", ["--fraction=2"], r"--fraction=2\.0 must be from 0 to 1"),
        ("x.json", ["--sink=-1"], "--sink=-1 must be at least 0"),
        ("x.json", ["--window=-1"], "--window=-1 must be at least 0"),
        ("x.json", ["--tokens=0"], "--tokens=0 must be at least 1"),
        ("", [], ".* is a folder; name a file"),
        ("new/x.json", ["--tokens=9"], ".*no-such-model"),
    ],
)
def test_bad_arguments_are_refused_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, words: list[str], message: str
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words")
    given = ["heads", "/no-such-model", str(text), str(tmp_path / out), *words]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit, match=f"error: {message}"):
        main()
    assert (tmp_path / "new").exists() == out.startswith("new")
