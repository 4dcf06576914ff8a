"""What is refused is told at fields and in tables, and seldom by a statement of its own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from search import BestOfN, ask_tell
from ttc import InvalidInput
from ttc.calibration.gate_calibration import GateCalibration
from ttc.cost_model import profile_file

ROOT = Path(__file__).parents[1]
MOST = 9 / 1000
"""`raise` statements to a line."""


def test_few_lines_raise() -> None:
    lines = raises = 0
    for room in ("ttc", "search", "verifiers", "experiments"):
        for file in (ROOT / room).rglob("*.py"):
            if not file.is_relative_to(ROOT / "experiments/lab"):
                text = file.read_text(encoding="utf-8")
                lines += len(text.splitlines())
                nodes = ast.walk(ast.parse(text)) if "raise" in text else ()
                raises += sum(isinstance(node, ast.Raise) for node in nodes)
    assert raises <= MOST * lines, "use a field's limit, `refuse` or `refusing` (ttc.errors)"


READERS: dict[str, Callable[[Path], object]] = {
    "calibration": lambda path: GateCalibration.load(path, model="m", dataset="d"),
    "profile": profile_file.read,
    "checkpoint": lambda path: ask_tell(BestOfN(), problem="?", checkpoint=path),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_cannot_be_read_is_not_said_to_hold_something_wrong(
    reader: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="Is a directory") as refused:
        READERS[reader](tmp_path)
    assert " is no " not in str(refused.value)
