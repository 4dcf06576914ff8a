"""Python code of others that might never end, cut off after some seconds."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from ttc.errors import InvalidInput

T = TypeVar("T")

AGAIN_S = 1.0
"""Seconds after which a cut is tried again, as Python ignores exceptions in some places, such as
destructors."""


class TimeIsUp(BaseException):
    """Raised in the thread that is cut off. No error, so that what is cut off does not handle
    it."""


def limited(call: Callable[[], T], seconds: float, what: str, way_out: str) -> T:
    """What `call` returns. Raises InvalidInput, "`what` takes more than ... s; `way_out`", where it
    takes longer.

    It is cut off between two operations of Python: one long call into C is waited for.
    """
    watch = _Watch(seconds)
    try:
        try:
            watch.start()
            return call()
        finally:
            watch.stop()
    except TimeIsUp:
        watch.stop()  # the first stop is itself cut off where the end and the limit fall together
        raise InvalidInput(f"{what} takes more than {seconds:g} s; {way_out}") from None


class _Watch(threading.Thread):
    """Cuts off the thread that made it, after some seconds and until it is stopped."""

    def __init__(self, seconds: float):
        super().__init__(daemon=True)
        self.seconds = seconds
        self.watched = ctypes.c_ulong(threading.get_ident())
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.sent = False

    def run(self) -> None:
        wait = self.seconds
        while not self.stopped.wait(wait):
            with self.lock:
                if not self.stopped.is_set():
                    self.sent = True
                    self._send()
            wait = AGAIN_S

    def stop(self) -> None:
        """Nothing is cut off from here on, nor by what was sent and has not come yet. Taking that
        back would leave the interpreter's mark that something is to come, so it is awaited."""
        awaited = False
        while True:
            try:
                with self.lock:
                    self.stopped.set()
                if self.sent and not awaited:
                    awaited = True
                    while True:
                        # in place of what has not come yet, or was ignored, as in a destructor
                        self._send()
                return
            except TimeIsUp:
                continue

    def _send(self) -> None:
        what = ctypes.py_object(TimeIsUp)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self.watched, what)
