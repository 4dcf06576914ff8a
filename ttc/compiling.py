"""A word to whoever waits: numba compiles the CPU kernels at their first use on a machine."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

LINE = "compiling the CPU kernels, once on this machine; it takes up to a minute"


@cache
def announce_compiling() -> None:
    """Log `LINE`, once in this process, when numba begins to compile a function of this package.

    What it has kept on disk from an earlier process is loaded, not compiled. Raises ImportError
    without numba.
    """
    from numba.core import event

    class Announcer(event.Listener):
        told = False

        def on_start(self, started: Any) -> None:
            ours = started.data["dispatcher"].py_func.__module__.startswith("ttc.")
            if ours and not self.told:
                self.told = True
                logging.getLogger("ttc").warning(LINE)

        def on_end(self, ended: Any) -> None:
            pass

    event.register("numba:compile", Announcer())
