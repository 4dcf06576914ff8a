"""One call at a time: threads that share an object wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast


class Lockable(Protocol):
    lock: RLock


S = TypeVar("S", bound=Lockable)
P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """The method under its object's `lock`."""

    @wraps(method)
    def locked(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return cast(Callable[Concatenate[S, P], R], locked)
