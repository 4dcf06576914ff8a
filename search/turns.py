"""Asking the model to look at an answer again."""

from __future__ import annotations

from collections.abc import Sequence

from search.base import Requests
from ttc.branch import Branch
from ttc.errors import ContextExceeded
from ttc.protocols import Append

REVISE = (
    "There may be a mistake in this solution. Check it, and write the whole solution again, "
    "without the mistake and with the final answer at its end."
)


def ask(branches: Sequence[Branch], words: str) -> Requests[list[Branch | None]]:
    """Put `words`, as the user's next message, after each answer; None where the model's context
    has no room for them. Use it as `asked = yield from ask(answers, words)`."""
    try:
        return list((yield Append(branches, words, turn=True)))
    except ContextExceeded:
        if len(branches) == 1:
            return [None]
    turns: list[Branch | None] = []
    for branch in branches:  # find out which
        turns += yield from ask([branch], words)
    return turns
