"""What commands print: nothing in it commands the terminal, whoever wrote it."""

from __future__ import annotations

import sys

from experiments.cli.printable import printable


def show(text: str, end: str = "\n") -> None:
    """Print a text on standard output."""
    print(printable(text), end=end, flush=True)


def say(text: str) -> None:
    """Print a line on standard error, at once."""
    print(printable(text), file=sys.stderr, flush=True)
