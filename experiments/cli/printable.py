"""Text that others wrote, as it may be shown on a terminal."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, all but tab and newline
    "\u2028\u2029"  # line and paragraph separators
    "\u202a-\u202e\u2066-\u2069"  # embeddings, overrides and isolates of the writing direction
    "\ud800-\udfff]"  # lone surrogates, which no stream can encode
)


def printable(text: str) -> str:
    r"""`text` with escapes such as `\x1b` for what could command a terminal.

    A model, a data set or a file may hold sequences that clear the screen, write to the clipboard
    (OSC 52), or reorder what is read (bidi overrides). Newlines, tabs and all other Unicode stay;
    the end of line `\r\n` becomes `\n`.
    """
    return _UNSAFE.sub(_escaped, text.replace("\r\n", "\n"))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
