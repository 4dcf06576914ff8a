"""The calls for asyncio: a search runs in a thread, and ends with the task that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any, TypeVar, Unpack, overload

from search.base import Search
from search.options import CallKeywords, Cancel, Many, One, SolveKeywords, check_cancel
from search.solving import Engines, solve, stream
from ttc.results import Progress, Result

T = TypeVar("T")


@overload
async def asolve(
    search: Search,
    *,
    problem: One,
    engine: Engines,
    **options: Unpack[CallKeywords],
) -> Result: ...
@overload
async def asolve(
    search: Search,
    *,
    problem: Many,
    engine: Engines,
    **options: Unpack[CallKeywords],
) -> list[Result]: ...
async def asolve(
    search: Search, *, problem: Any, engine: Engines, **options: Any
) -> Result | list[Result]:
    """`solve` for asyncio. Cancelling the task ends the search within a pass of the model and frees
    its memory before `CancelledError` is raised.

    The search runs in a thread of its own, where `on_result` and `on_step` are called. options: as
    for `solve`.
    """
    left = Event()
    options["cancel"] = AnyOf(left, options.get("cancel"))
    return await _ended_with_the_task(
        lambda: solve(search, problem=problem, engine=engine, **options), left
    )


async def astream(
    search: Search,
    *,
    problem: One,
    engine: Engines,
    tokens: bool = False,
    **options: Unpack[SolveKeywords],
) -> AsyncGenerator[Progress, None]:
    """`stream` for asyncio. Closing the generator, as `contextlib.aclosing` does, or cancelling the
    task that reads it ends the search within a pass of the model and frees its memory.

    tokens, options: as for `stream`.
    """
    left = Event()
    options["cancel"] = AnyOf(left, options.get("cancel"))
    loop = asyncio.get_running_loop()
    events = asyncio.Queue[Progress | None]()

    def tell(event: Progress | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, so that nobody reads
            loop.call_soon_threadsafe(events.put_nowait, event)

    def work() -> None:
        try:
            for progress in stream(
                search, problem=problem, engine=engine, tokens=tokens, **options
            ):
                tell(progress)
        finally:
            tell(None)

    searching = asyncio.ensure_future(_ended_with_the_task(work, left))
    try:
        while (event := await events.get()) is not None:
            yield event
        await searching
    finally:
        searching.cancel()
        with suppress(asyncio.CancelledError):
            await searching


class AnyOf:
    """Says that a problem is to end once any of these does."""

    def __init__(self, *cancels: Cancel | None):
        for one in cancels:
            check_cancel(one)
        self.cancels = [one for one in cancels if one is not None]

    def is_set(self) -> bool:
        return any(one.is_set() for one in self.cancels)


async def _ended_with_the_task(work: Callable[[], T], left: Event) -> T:
    """What `work` returns, from a thread. Where the task is cancelled, once or again, `left` is set
    and the thread waited for."""
    executor = ThreadPoolExecutor(1, "search")
    running = asyncio.get_running_loop().run_in_executor(executor, work)
    executor.shutdown(wait=False)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        left.set()
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        running.exception()  # read, or asyncio would report it as forgotten
        raise
