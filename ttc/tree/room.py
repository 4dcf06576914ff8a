"""How much room a new storage has. Measured on best of 16 and beam search: at most 1.12 of what is
written is kept."""

SHORT_STEP_TOKENS = 64
"""A step of at most so many tokens gets all of its room at once."""

LEAST_TOKENS = 32
"""In longer steps a storage has room for at least so many."""

WRITTEN_PER_ROOM = 4
"""And for one more for each so many that its branch has written."""

TOGETHER_TOKENS = 256
"""Groups that take turns on the device each decode at most so many tokens at a time."""


def room_for(left: int, written: int) -> int:
    """Of a storage for a branch that may write `left` more tokens in its step, and has written so
    many."""
    if left <= SHORT_STEP_TOKENS:
        return left
    return min(left, max(LEAST_TOKENS, written // WRITTEN_PER_ROOM))
