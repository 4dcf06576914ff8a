"""What commands print: nothing in it commands the terminal, whoever wrote it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from experiments.cli.printable import printable

READER_LEFT = 141
"""The exit code where nobody reads the output any more, as after `| head`; a shell has it."""


def show(text: str, end: str = "\n") -> None:
    """Print a text on standard output. Ends the process where nobody reads it any more, or where it
    cannot be written."""
    try:
        print(printable(text), end=end, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush
        if isinstance(error, BrokenPipeError):
            raise SystemExit(READER_LEFT) from None
        why = f"error: standard output cannot be written ({error.strerror}); what the command has"
        raise SystemExit(
            f"{why} done is kept: send the output elsewhere, and run it again"
        ) from None


def show_errors(errors: Mapping[str, str], what: str) -> None:
    """Print why parts of a job have failed, by their names. what: of how many, and what could not
    be done to them."""
    if errors:
        show(f"\n{len(errors)} of {what}:")
        show("\n".join(f"  {name}: {text}" for name, text in errors.items()))


def say(text: str) -> None:
    """Print a line on standard error, at once."""
    print(printable(text), file=sys.stderr, flush=True)
