"""The link between the device tier and the host tier: asynchronous copies, counted where they are
made."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ttc.trace import Trace

MAX_WAITS = 10_000
"""Unread waits of the device before they are read."""

LEAST_PART_BYTES = 1 << 18
"""What is needed later gives way after so many bytes."""

Copies = Sequence[tuple[Tensor, Tensor]]
"""(destination, source) each."""

NOWHERE = torch.device("meta")
"""Where tensors have sizes and no numbers."""


@dataclass
class Transfer:
    """Copies under way. `Link.wait` before touching a destination, or reusing a source; it raises
    what went wrong."""

    event: torch.cuda.Event | None = None
    future: Future[None] | None = None
    error: Exception | None = None

    @property
    def done(self) -> bool:
        """As far as is known without waiting."""
        if self.event is not None:
            return bool(self.event.query())
        return self.future is None or self.future.done()

    def result(self) -> None:
        """Wait for a worker's copies. Raises what the first that failed raised."""
        if self.future is not None:
            self.future.result()


class Link:
    """Moves KV between the tiers, one queue each way, and counts the bytes by cause.

    Copies that are needed later, as the next layer's weights, give way to others after each part
    (`LEAST_PART_BYTES`).

    On CUDA each way is a stream, host memory is pinned, and the device does the waiting; what is
    needed later has a stream of its own. On a CPU copies are made at once or, with `gbps`, by a
    worker that takes as long as a link of so many 1e9 bytes a second. Times so obtained are
    simulated; bytes never are.

    uncharged: bytes to the device and to the host that no problem has been charged for yet.
    """

    def __init__(self, device: torch.device, gbps: float | None = None):
        self.device = device
        self.gbps = gbps
        self.to_device_bytes: Counter[str] = Counter()
        self.to_host_bytes: Counter[str] = Counter()
        self.uncharged = [0, 0]
        self._exposed_s = 0.0
        self._device_waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.trace: Trace | None = None
        self.to_device = Queue(self, "host to device", host=1)
        self.to_host = Queue(self, "device to host", host=0)

    @property
    def exposed_s(self) -> float:
        """How long computing had to wait for copies so far. Waits for the device to come so far."""
        for before, after in self._device_waits:
            after.synchronize()
            self._exposed_s += before.elapsed_time(after) / 1e3
        self._device_waits.clear()
        return self._exposed_s

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Bytes and waits within count nowhere, as those of a measurement."""
        exposed_s = self.exposed_s
        counters = self.to_device_bytes, self.to_host_bytes
        counts = [Counter(counter) for counter in counters]
        uncharged = list(self.uncharged)
        try:
            yield
        finally:
            for now, before in zip(counters, counts, strict=True):
                now.clear()
                now.update(before)
            self.uncharged[:] = uncharged
            self._device_waits.clear()
            self._exposed_s = exposed_s

    @property
    def simulated(self) -> bool:
        """Whether transfer times stand for another machine's."""
        return self.device.type == "cpu" and self.gbps is not None

    def fetch(
        self, copies: Copies, cause: str, after: Sequence[Transfer] = (), later: bool = False
    ) -> Transfer:
        """Host to device; starts when `after` is done. later: gives way to fetches that are not,
        and cannot be in their `after`."""
        return self.to_device.send({cause: copies}, self.to_device_bytes, after, later)

    def fetch_together(self, copies: Mapping[str, Copies]) -> Transfer:
        """Host to device in one transfer; the bytes of each cause are counted by themselves."""
        return self.to_device.send(copies, self.to_device_bytes)

    def store(self, copies: Copies, cause: str, after: Sequence[Transfer] = ()) -> Transfer:
        """Device to host; fails if one of `after` did."""
        return self.to_host.send({cause: copies}, self.to_host_bytes, after)

    def wait(self, transfer: Transfer | None) -> None:
        """Let what is computed from here on see the transfer's result."""
        if transfer is None:
            return
        if transfer.error is not None:
            raise transfer.error
        if transfer.event is not None:
            self._wait_on_device(transfer.event)
        elif transfer.done:
            transfer.result()  # raises what a copy raised
        else:
            with self._waiting():
                transfer.result()

    def _wait_on_device(self, event: torch.cuda.Event) -> None:
        if event.query():
            return
        stream = torch.cuda.current_stream(self.device)
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        before.record(stream)
        stream.wait_event(event)
        after.record(stream)
        self._device_waits.append((before, after))
        if len(self._device_waits) > MAX_WAITS:
            self._exposed_s = self.exposed_s

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self._exposed_s += end - start
            if self.trace is not None:
                self.trace.add("waiting", "exposed", start, end)

    def wait_before_drop(self, transfer: Transfer) -> None:
        """Wait until the device copy that a transfer uses can be dropped: on CUDA not at all, as
        the allocator keeps its memory until then (`record_stream`)."""
        if transfer.event is None:
            self.wait(transfer)

    def wait_and_ignore(self, transfer: Transfer | None) -> None:
        """Wait for a transfer whose result nobody needs, failed or not."""
        with suppress(Exception):
            self.wait(transfer)

    def wait_on_host(self, transfer: Transfer | None) -> None:
        """Wait here, not on the device."""
        if transfer is not None and transfer.event is not None:
            if not transfer.done:
                with self._waiting():
                    transfer.event.synchronize()
        else:
            self.wait(transfer)


class Queue:
    """One direction of the link."""

    def __init__(self, link: Link, name: str, host: int):
        self.link = link
        self.name = name
        self.host = host  # which of (destination, source) is on the host
        self.stream = torch.cuda.Stream(link.device) if link.device.type == "cuda" else None
        self.later_stream: torch.cuda.Stream | None = None
        self.worker: _Worker | None = None
        self.free_at = 0.0  # when the link is done with what it was given so far

    def send(
        self,
        by_cause: Mapping[str, Copies],
        counter: Counter[str],
        after: Sequence[Transfer] = (),
        later: bool = False,
    ) -> Transfer:
        """Make copies in their order, and count them by what causes them."""
        for cause, its in by_cause.items():
            counter[cause] += _nbytes(its)
        cause = " and ".join(by_cause)
        copies = list(chain.from_iterable(by_cause.values()))
        self.link.uncharged[1 - self.host] += _nbytes(copies)
        if self.stream is None and self.link.gbps is not None:
            self.worker = worker = self.worker or _Worker(self.name)
            parts = list(_parts(copies)) if later else [copies]
            work = partial(self._slowly, parts, cause, after, time.perf_counter())
            return Transfer(future=worker.submit(later, work))
        try:
            if self.stream is not None:
                return Transfer(event=self._on_stream(self._stream(later), copies, after))
            self._in_order(copies, after)
        except Exception as error:
            return Transfer(error=error)
        return Transfer()

    def _stream(self, later: bool) -> torch.cuda.Stream:
        assert self.stream is not None
        if later and self.later_stream is None:
            self.later_stream = torch.cuda.Stream(self.link.device)
        return self.later_stream if later and self.later_stream is not None else self.stream

    def _in_order(self, copies: Copies, after: Sequence[Transfer]) -> None:
        for transfer in after:
            self.link.wait(transfer)
        self.copy(copies)

    def _on_stream(
        self, stream: torch.cuda.Stream, copies: Copies, after: Sequence[Transfer]
    ) -> torch.cuda.Event:
        # sources are computed, destinations are free
        stream.wait_stream(torch.cuda.current_stream(self.link.device))
        for pair in copies:  # before the first copy is under way, as a later one may fail
            pair[1 - self.host].record_stream(stream)
        with torch.cuda.stream(stream):
            self._in_order(list(contiguous_parts(copies, self.host)), after)
            event = torch.cuda.Event()
            event.record(stream)
        return event

    def _slowly(
        self, parts: Sequence[Copies], cause: str, after: Sequence[Transfer], begin: float
    ) -> None:
        """Copy part by part, each ending when a link that began as soon as it was free would.
        begin: when it was to begin at first."""
        waits = not all(transfer.done for transfer in after)
        for transfer in after:
            transfer.result()
        begin = time.perf_counter() if waits else begin
        for number, copies in enumerate(parts):
            if number and self.worker is not None:
                self.worker.make_way()
            assert self.link.gbps is not None
            nbytes = _nbytes(copies)
            start = max(begin, self.free_at)
            self.copy(copies)
            # what a thread is late by is made up for
            self.free_at = start + nbytes / (self.link.gbps * 1e9)
            time.sleep(max(0.0, self.free_at - time.perf_counter()))
            if self.link.trace is not None:
                self.link.trace.add(self.name, cause, start, self.free_at, bytes=nbytes)

    @staticmethod
    @torch.inference_mode()
    def copy(copies: Copies) -> None:
        # in one call: between two, a worker would wait for the thread that computes to let Python
        # go
        if copies:
            destinations, sources = zip(*copies, strict=True)
            torch._foreach_copy_(destinations, sources, non_blocking=True)


class _Worker:
    """A thread that does one thing after the other, in their order, what is for later last."""

    def __init__(self, name: str):
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.now = deque[Callable[[], None]]()
        self.later = deque[Callable[[], None]]()

    def submit(self, later: bool, work: Callable[[], None]) -> Future[None]:
        future = Future[None]()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        (self.later if later else self.now).append(run)
        self.thread.submit(self._next)
        return future

    def make_way(self) -> None:
        while self.now:
            self.now.popleft()()

    def _next(self) -> None:
        if due := self.now or self.later:  # else another call has made way for it
            due.popleft()()


def _nbytes(copies: Copies) -> int:
    return sum(source.numel() * source.element_size() for _, source in copies)


def _parts(copies: Copies) -> Iterator[Copies]:
    """The copies in parts of `LEAST_PART_BYTES` or one copy."""
    part = list[tuple[Tensor, Tensor]]()
    for pair in copies:
        part.append(pair)
        if _nbytes(part) >= LEAST_PART_BYTES:
            yield part
            part = []
    if part:
        yield part


def contiguous_parts(copies: Copies, side: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The copies in parts whose destination (side 0) or source (side 1) is contiguous. PyTorch
    takes other CUDA copies through pageable memory, filled at once, though what it reads may still
    be under way."""
    for pair in copies:
        host = pair[side]
        if host.is_contiguous():
            yield pair
        else:
            yield from contiguous_parts(list(zip(*pair, strict=True)), side)


class DryLink(Link):
    """A link over which nothing crosses: it counts what would."""

    def __init__(self) -> None:
        super().__init__(NOWHERE)
        for queue in (self.to_device, self.to_host):
            queue.copy = lambda copies: None  # type: ignore[method-assign]
