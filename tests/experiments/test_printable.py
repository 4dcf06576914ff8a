"""What a model, a data set or a file says to a terminal."""

from __future__ import annotations

import pytest

from experiments.cli.printable import printable


@pytest.mark.parametrize(
    ("attack", "shown"),
    [
        ("\x1b]52;c;cm0gLXJm\x07", r"\x1b]52;c;cm0gLXJm\x07"),  # writes to the clipboard
        ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),  # clears the screen
        ("\x1b]8;;http://a\x1b\\here", r"\x1b]8;;http://a\x1b" "\\here"),  # a link
        ("\x9b2J", r"\x9b2J"),  # the same by C1 controls
        ("\x9d0;title\x9c", r"\x9d0;title\x9c"),
        ("right\rwrong", r"right\x0dwrong"),  # overwrites its line
        ("12\b\b34", r"12\x08\x0834"),
        ("a\x00b\x7fc", r"a\x00b\x7fc"),
        ("a\x0bb\x0cc", r"a\x0bb\x0cc"),
        ("a\x85b\u2028c\u2029d", r"a\x85b\u2028c\u2029d"),
        ("\u202e321\u202c", r"\u202e321\u202c"),  # reads from right to left
        ("\u2066a\u2067b\u2068c\u2069", r"\u2066a\u2067b\u2068c\u2069"),
        ("\ud83d", r"\ud83d"),  # no stream can encode it
    ],
)
def test_what_commands_a_terminal_is_shown_as_an_escape(attack: str, shown: str) -> None:
    assert printable(f"x {attack} y") == f"x {shown} y"


@pytest.mark.parametrize(
    "text",
    [
        "two\nlines\tand a tab",
        "grüße, 你好, שלום, مرحبا",
        "🏳️‍🌈 👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
        "x² × y ÷ z − ½ ≤ ∞",
        r"already \x1b escaped",
        "a\xa0b\u200fc\u200dd\u00ade",
        "e\u0301",
        "",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_line_ends_of_another_system_are_line_ends() -> None:
    assert printable("one\r\ntwo\r\n") == "one\ntwo\n"
