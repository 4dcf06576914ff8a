"""Looking up between two passes: who has begun a long call can have it broken off there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_look: ContextVar[Callable[[], object] | None] = ContextVar("look", default=None)


class BrokenOff(BaseException):
    """Raised by a look, to end the call that is under way. No error, so that nobody takes it for
    one of their own."""


@contextmanager
def lookout(look: Callable[[], object]) -> Iterator[None]:
    """Have `look` called between any two passes that this thread makes meanwhile. It may raise
    `BrokenOff`."""
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


def look_up() -> None:
    """Between two passes."""
    look = _look.get()
    if look is not None:
        look()
