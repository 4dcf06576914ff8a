"""What is refused is told at fields and in tables, and seldom by a statement of its own."""

from __future__ import annotations

import ast
from pathlib import Path

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
