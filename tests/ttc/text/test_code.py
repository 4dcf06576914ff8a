"""Programs read out of texts."""

from __future__ import annotations

import pytest

from ttc.text.answers import extract_answer
from ttc.text.code import find_program, in_a_block, normalized
from ttc.text.equality import ballots, same_answer

SQUARE = "def square(x):\n    return x * x"


@pytest.mark.parametrize(
    "text",
    [
        f"Here it is:\n```python\n{SQUARE}\n```\nIt multiplies.",
        f"```\n{SQUARE}\n```",
        f"~~~py\n{SQUARE}\n~~~",
        f"First:\n```python\ndef wrong(): pass\n```\nBetter:\n```python\n{SQUARE}\n```",
        f"```python\n{SQUARE}\n```\nUse it:\n```python\nprint(square(2))\n```",
        f"```python\n{SQUARE}\n```\nTest:\n```python\ndef test_it():\n    assert square(2)\n```",
        f"```python\n{SQUARE}\n```\n```python\nclass TestIt(unittest.TestCase):\n    pass\n```",
        f"```python\n{SQUARE}\n```\nRun it:\n```bash\npython square.py\n```",
        f"```python\n{SQUARE}\n",
        "1. Multiply:\n   ```python\n   def square(x):\n       return x * x\n   ```\n2. Done.",
    ],
)
def test_a_program_is_read_from_fenced_blocks(text: str) -> None:
    assert find_program(text) == SQUARE == extract_answer(text, "code", strict=True)


def test_without_fences_it_is_what_is_python() -> None:
    text = f"Sure! Here it is.\n{SQUARE}\n\nThis function squares.\nIt's simple."
    assert find_program(text) == SQUARE and find_program(text, strict=True) is None
    for words in ("No program.", "", "x = 3", "import this is no program"):
        assert find_program(words) is None


def test_a_text_says_whether_a_block_is_open() -> None:
    assert in_a_block("```python\ndef f") and not in_a_block("```\n1\n```\n")


def test_programs_that_differ_in_looks_are_one_vote() -> None:
    other = "def square(x): # squares\n  return (x*x)\n"
    assert same_answer(SQUARE, other, "code") and normalized(other) == SQUARE
    assert ballots([SQUARE, other, "def f("], "code") == [SQUARE, SQUARE, "def f("]
    assert not same_answer("if x:\n  y()\nz()", "if x:\n  y()\n  z()", "code")


@pytest.mark.parametrize(
    "text", ["(" * 10_000, "-" * 100_000 + "1", "f(" * 50_000, "x" + ".a" * 100_000, "`" * 10_000]
)
def test_a_hostile_text_has_no_program_and_ends(text: str) -> None:
    assert find_program(text) is None and normalized(text) == text
