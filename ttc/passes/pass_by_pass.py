"""Calls of an engine: one at a time under its lock, or pass by pass, so that between two passes
others may use the engine and whoever began the call may interrupt it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from ttc.tree.branch import Branch


class Lockable(Protocol):
    lock: RLock


T = TypeVar("T")
S = TypeVar("S", bound=Lockable)
P = ParamSpec("P")
Passes = Generator[None, None, T]
"""Each `next` is one pass of the model."""

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


class PassByPass(Generic[T]):
    """A call of an engine that is made one pass at a time (see `ttc.protocols.Prefill`).

    branches: what it works on. One that is released leaves it, and what it had goes at once.
    result: what the call gives, once all passes are made.
    lock: held during each pass.
    under_way: the calls of the engine that have begun and not ended, this one among them.
    running: whether a pass is being made now, so that whoever asks is a part of it.
    """

    def __init__(
        self,
        branches: Sequence[Branch],
        passes: Passes[T],
        lock: RLock,
        under_way: set[PassByPass[Any]],
    ):
        self.branches = list(branches)
        self.passes = passes
        self.lock = lock
        self.under_way = under_way
        self.done = False
        self.running = False
        self.result: T
        self.error: BaseException | None = None

    def step(self) -> bool:
        """The next pass. True once all are made. Raises what has stopped it, in whichever
        thread."""
        with self.lock:
            if self.error is not None:
                raise self.error
            try:
                if not self.done:
                    self.running = True
                    self.under_way.add(self)
                    next(self.passes)
            except StopIteration as end:
                self.done = True
                self.result = end.value
            except BaseException as error:
                self.error = error
                raise
            finally:
                self.running = False
                if self.done or self.error is not None:
                    self.under_way.discard(self)
            return self.done

    def finish(self) -> T:
        with self.lock:
            while not self.step():
                try:
                    check_interrupt()
                except BaseException:
                    self.close()
                    raise
            return self.result

    def made(self) -> Passes[T]:
        """All passes, with a pause after each, as a part of longer work."""
        try:
            while not self.step():
                yield
            return self.result
        finally:
            self.close()

    def close(self) -> None:
        """Make no more passes: extended branches are what they were, new ones released."""
        with self.lock:
            self.under_way.discard(self)
            self.passes.close()
            if not self.done and self.error is None:
                self.error = RuntimeError("this call was closed before its last pass")


def at_once(
    begin: Callable[Concatenate[S, P], PassByPass[T]],
) -> Callable[Concatenate[S, P], T]:
    @wraps(begin)
    def call(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock:
            begun: PassByPass[T] = getattr(self, begin.__name__)(*args, **kwargs)
            return begun.finish()

    return cast(Callable[Concatenate[S, P], T], call)
