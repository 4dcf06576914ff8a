"""Work that is done pass by pass: between two passes others may use the engine, and whoever began
it may break off."""

from __future__ import annotations

from collections.abc import Generator
from threading import RLock
from typing import TypeVar

from ttc.lookout import look_up
from ttc.tree.branch import Branch

T = TypeVar("T")
Passes = Generator[None, None, T]
"""Each `next` is one pass of the model."""


def all_of(passes: Passes[T]) -> T:
    """Make all passes at once."""
    while True:
        try:
            next(passes)
        except StopIteration as end:
            result: T = end.value
            return result


class PassByPass:
    """A call of an engine that is made one pass at a time (see `ttc.protocols.Prefill`).

    branches: what it computes keys and values of. One that is released leaves it, and what it had
    goes at once.
    lock: held during each pass. under_way: the calls of the engine that have begun and not ended,
    this one among them.
    """

    def __init__(
        self, branches: list[Branch], passes: Passes[None], lock: RLock, under_way: set[PassByPass]
    ):
        self.branches, self.passes, self.lock, self.under_way = branches, passes, lock, under_way
        self.done = False
        self.error: BaseException | None = None

    def step(self) -> bool:
        """The next pass. True once all are made. Raises what has stopped it, also where that was in
        another thread."""
        with self.lock:
            if self.error is not None:
                raise self.error
            try:
                if not self.done:
                    next(self.passes)
                    self.under_way.add(self)
            except StopIteration:
                self.done = True
            except BaseException as error:
                self.error = error
                raise
            finally:
                if self.done or self.error is not None:
                    self.under_way.discard(self)
            return self.done

    def finish(self) -> list[Branch]:
        """All passes that are left, with nobody in between. Returns the branches."""
        with self.lock:
            while not self.step():
                try:
                    look_up()
                except BaseException:
                    self.close()
                    raise
            return self.branches

    def close(self) -> None:
        """Make no more passes. Branches that were extended are what they were; new ones are
        released."""
        with self.lock:
            self.under_way.discard(self)
            self.passes.close()
            if not self.done and self.error is None:
                self.error = RuntimeError("this prefill was closed before its last pass")
