"""What docs/extending.md says to write works, in a folder outside the project."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "extending.md").read_text()
MINE, SCRIPT = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
(COMMAND,) = re.findall(r"```\n(python .*?)\n```", TEXT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "sums.csv").write_text("a,b\n2,5\n1,8\n")
    return tmp_path


def ran(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_search_and_a_verifier_of_ones_own_solve_a_problem_in_python(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT)
    assert re.fullmatch(r"(\S+) [1-3]\n", ran([sys.executable, "script.py"], folder))


def test_a_search_a_verifier_and_a_reader_of_ones_own_run_from_the_command_line(folder: Path) -> None:
    ran([sys.executable, *shlex.split(COMMAND)[1:]], folder)
    records = [json.loads(line) for line in (folder / "outputs/mine/records.jsonl").read_text().splitlines()]
    assert [(r["question"], r["gold"]) for r in records] == [("What is 2 + 5?", "7"), ("What is 1 + 8?", "9")]
    for record in records:
        *others, last = sorted(record["branches"], key=lambda branch: branch["path"])
        assert all(branch["score"] < 0.5 for branch in others)
        assert last["score"] >= 0.5 or len(others) == 2
        for branch in record["branches"]:
            assert branch["score"] == 1 / max(1, len(branch["text"].split()))
            assert branch["tokens"] <= 16
        assert "Reply with the number only." in record["prompt"]
