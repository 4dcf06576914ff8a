"""The tool that runs programs."""

from __future__ import annotations

import pytest

from ttc import InvalidInput, PythonTools, ToolError


def test_programs_are_run_in_the_sandbox() -> None:
    (python,) = PythonTools(cpu_s=1).tools
    assert python.answer({"code": "print('a')\n6 * 7"}) == "a\n42"
    assert python.answer({"code": "x = 1"}) == "(it printed nothing)"
    for code, words in [
        ("1 / 0", "ZeroDivisionError"),
        ("open('/x', 'w')", "Error"),
        ("(", "Syntax"),
    ]:
        with pytest.raises(ToolError, match=words):
            python.answer({"code": code})


def test_limits_are_checked() -> None:
    with pytest.raises(InvalidInput, match="cpu_s=0"):
        PythonTools(cpu_s=0)
