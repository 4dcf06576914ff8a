"""Python code of others that might never end, cut off after some seconds."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from ttc.errors import InvalidInput

T = TypeVar("T")


class TimeIsUp(BaseException):
    """Raised in the thread that is cut off. No error, so that what is cut off does not handle
    it."""


def limited(call: Callable[[], T], seconds: float, what: str, way_out: str) -> T:
    """What `call` returns. Raises InvalidInput, "`what` takes more than ... s; `way_out`", where it
    takes longer.

    It is cut off between two operations of Python: one long call into C is waited for.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    over = cut = False

    def cut_off() -> None:
        nonlocal cut
        with lock:
            if not over:
                cut = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeIsUp))

    timer = threading.Timer(seconds, cut_off)
    timer.daemon = True
    try:
        timer.start()
        try:
            return call()
        finally:
            with lock:
                over = True
            timer.cancel()
            while cut and not isinstance(sys.exception(), TimeIsUp):  # it is still on its way
                pass
    except TimeIsUp:
        raise InvalidInput(f"{what} takes more than {seconds:g} s; {way_out}") from None
