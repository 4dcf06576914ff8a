"""What the README says to type works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.report import RESULTS, TABLES, filled

ROOT = Path(__file__).parents[1]


def test_the_api_example_runs_as_printed() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    *_, counts, left = done.stdout.strip().splitlines()
    assert re.fullmatch(r"[1-4] branches, \d+ nodes, \d+ tokens", counts)
    assert left == "0 bytes of KV are left"


@pytest.mark.parametrize("document", TABLES)
def test_the_tables_are_the_committed_figures(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert filled(document) == Path(document).read_text()
    assert all((RESULTS / f"{file}.json").exists() for file, _ in TABLES[document].values())
