"""Where the time of a decoding step goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from ttc.attention.plan import Plan
from ttc.model.compiled.cpu_program import Program
from ttc.model.packed_linear import PackedProduct
from ttc.scheduler import batch


@contextmanager
def timers() -> Iterator[dict[str, float]]:
    """Seconds spent in the linear layers, in attention and in sampling while it is open (on a CPU
    calls block)."""
    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        seconds[name] = 0.0

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                seconds[name] += time.perf_counter() - start

        return call

    scheduler: Any = batch
    product, draw, attend, run = (
        PackedProduct.product,
        scheduler.draw_tokens,
        Plan.attend,
        Program.run,
    )
    PackedProduct.product = timed("linear layers", product)  # type: ignore[method-assign]
    Plan.attend = timed("attention", attend)  # type: ignore[method-assign]
    scheduler.draw_tokens = timed("sampling", draw)

    def run_timed(program: Program, part: int | None = None) -> None:
        start = time.perf_counter()
        run(program, part)
        spent = time.perf_counter() - start
        seconds["linear layers"] += spent * program.share(program.at.LINEAR, part)
        seconds["attention"] += spent * program.share([program.at.ATTEND], part)

    Program.run = run_timed  # type: ignore[method-assign, assignment]
    try:
        yield seconds
    finally:
        PackedProduct.product = product  # type: ignore[method-assign]
        scheduler.draw_tokens = draw
        Plan.attend, Program.run = attend, run  # type: ignore[method-assign]
