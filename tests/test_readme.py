"""What the README says to type works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from experiments.report import RESULTS, TABLES, fill

ROOT = Path(__file__).parents[1]


def test_the_api_example_runs_as_printed() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    *_, counts, left = done.stdout.strip().splitlines()
    assert re.fullmatch(r"[1-4] branches, \d+ nodes, \d+ tokens", counts)
    assert left == "0 bytes of KV are left"


def test_the_tables_are_the_committed_figures(tmp_path: Path) -> None:

    text = (ROOT / "README.md").read_text()
    for name, (file, table) in TABLES.items():
        assert fill(text, name, table(json.loads((RESULTS / f"{file}.json").read_text()))) == text
