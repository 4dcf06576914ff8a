"""Which backslashes of a shell's words become line breaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.cli.escapes import typed


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r"Q: {question}\nA:", "Q: {question}\nA:"),
        (r"\n\n", "\n\n"),
        (r"one\nnot two\nanswer:\neq", "one\nnot two\nanswer:" + r"\neq"),
        (r"a\tb", r"a\tb"),  # the beginning of a command
        (r"a\t\tB", "a\t\tB"),
        (
            r"x \neq y, \nu, \not=, \text{a}, \theta, \times",
            r"x \neq y, \nu, \not=, \text{a}, \theta, \times",
        ),
        (r"\boxed{} \frac{1}{2}", r"\boxed{} \frac{1}{2}"),
        (r"a \\n b \\", r"a \\n b \\"),
        ("already\nthere", "already\nthere"),
    ],
)
def test_line_breaks_are_told_from_latex(text: str, meant: str) -> None:
    assert typed(text) == meant


@given(st.text(st.sampled_from("ab {}\n\t\\Aeqnt")))
def test_what_was_resolved_stays_as_it_is(text: str) -> None:
    assert typed(typed(text)) == typed(text)
    assert "\\" in text or typed(text) == text
