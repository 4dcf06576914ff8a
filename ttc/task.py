"""Calls of a backend that are made one pass at a time, so that between two passes others may use it
and whoever made the call may interrupt it; and calls that wait for each other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from ttc.branch import Branch
from ttc.errors import on_failure


class Lockable(Protocol):
    lock: RLock


T = TypeVar("T")
S = TypeVar("S", bound=Lockable)
P = ParamSpec("P")
Passes = Generator[None, None, T]
"""Each `next` is one pass of the model."""
LET_GO: Any = "let go"
"""In place of a pass: the call begins again, and has let go of all that it had."""

_check: ContextVar[Callable[[], object] | None] = ContextVar("check", default=None)


def one_at_a_time(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """The method under its object's `lock`: threads that share an object wait for each other."""

    @wraps(method)
    def locked(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock:
            return method(self, *args, **kwargs)

    return cast(Callable[Concatenate[S, P], T], locked)


class Interrupted(BaseException):
    """Raised by the check of `interruptible`, to end the call that is under way. No error, so that
    nobody takes it for one of their own."""


@contextmanager
def interruptible(check: Callable[[], object]) -> Iterator[None]:
    """Have `check` called between any two passes that this thread makes meanwhile. It may raise
    `Interrupted`."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_interrupt() -> None:
    """Between two passes."""
    check = _check.get()
    if check is not None:
        check()


def all_of(passes: Passes[T]) -> T:
    while True:
        try:
            next(passes)
        except StopIteration as end:
            result: T = end.value
            return result


class Task(Generic[T]):
    """A call of a backend. `result` makes it; or `step` does pass by pass, and its caller may do
    anything else with the backend in between.

    branches: what it works on, new ones too. One that is released leaves it, and what it had goes
    at once. Nobody may do more than release them before the last pass.
    lock: held during each pass.
    under_way: the calls of the backend that have begun and not ended, this one among them.
    begun: whether anybody has made a pass of it, or closed it.
    running: whether a pass is being made now, so that whoever asks is a part of it.
    holds: whether its passes so far are of use.
    """

    def __init__(
        self,
        branches: Sequence[Branch],
        passes: Passes[T],
        lock: RLock | None = None,
        under_way: set[Task[Any]] | None = None,
    ):
        self.branches = list(branches)
        self._passes = passes
        self.lock = RLock() if lock is None else lock
        self.under_way = set() if under_way is None else under_way
        self.begun = False
        self.done = False
        self.running = False
        self.holds = True
        self.error: BaseException | None = None
        self._result: T

    @classmethod
    def made(cls, result: T, branches: Sequence[Branch] = ()) -> Task[T]:
        """A call that has no passes, and is made already."""
        task = cls(branches, _no_passes())
        task._result = result
        task.begun = task.done = True
        return task

    def step(self) -> bool:
        """The next pass. True once all are made. Raises what has stopped it, in whichever
        thread."""
        with self.lock:
            self.begun = True
            if self.error is not None:
                raise self.error
            try:
                if not self.done:
                    self.running = True
                    self.under_way.add(self)
                    self.holds = next(self._passes) is not LET_GO
            except StopIteration as end:
                self.done = True
                self._result = end.value
            except BaseException as error:
                self.error = error
                raise
            finally:
                self.running = False
                if self.done or self.error is not None:
                    self.under_way.discard(self)
            return self.done

    def result(self) -> T:
        """What the call gives. Makes the passes that are left, with nobody between."""
        with self.lock:
            while not self.step():
                with on_failure(self.close):
                    check_interrupt()
            return self._result

    def passes(self) -> Passes[T]:
        """All passes, with a pause after each, as a part of longer work."""
        try:
            while not self.step():
                yield
            return self._result
        finally:
            self.close()

    def close(self) -> None:
        """Make no more passes: extended branches are what they were, new ones released."""
        with self.lock:
            self.begun = True
            self.under_way.discard(self)
            self._passes.close()
            if not self.done and self.error is None:
                self.error = RuntimeError("this call was closed before its last pass")

    def __del__(self) -> None:
        if not self.begun and not all(branch.released for branch in self.branches):
            what = "a call of a backend was never made; end it with .result(), as in"
            warnings.warn(f"{what} engine.extend(...).result()", RuntimeWarning, 1, self)


def _no_passes() -> Passes[Any]:
    return
    yield
