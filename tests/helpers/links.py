"""Links whose copies come as late as may be, or fail."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ttc import Engine


class Late:
    """A worker of the link that copies only when somebody waits for it, where a thread only may be
    that late."""

    def __init__(self) -> None:
        self.due: list[_LateCopy] = []

    def submit(self, later: bool, work: Callable[..., None], *arguments: Any) -> Future[None]:
        self.due.append(_LateCopy(self, work, arguments))
        return self.due[-1]

    def make_way(self) -> None:
        """Nothing is done before somebody waits for it."""


class _LateCopy(Future[None]):
    def __init__(self, worker: Late, work: Callable[..., None], arguments: tuple[Any, ...]):
        super().__init__()
        self.worker, self.work, self.arguments = worker, work, arguments

    def result(self, timeout: float | None = None) -> None:
        while not self.done():
            first = self.worker.due.pop(0)
            try:
                first.set_result(first.work(*first.arguments))
            except Exception as error:
                first.set_exception(error)
        super().result(timeout=0)


def late(engine: Engine) -> Engine:
    """The engine, its link making each copy as late as may be."""
    engine.memory.link.gbps = 1e9
    for queue in (engine.memory.link.to_device, engine.memory.link.to_host):
        queue.worker = Late()  # type: ignore[assignment]
    return engine


def failing_at(call: int, original: Callable[..., None]) -> Callable[..., None]:
    calls = iter(range(1, 10_000))

    def fails(copies: Any) -> None:
        if next(calls) == call:
            raise OSError("the link is down")
        original(copies)

    return fails
