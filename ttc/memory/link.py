"""The link between the device tier and the host tier: asynchronous copies, counted where they are made."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from ttc.trace import Trace

Copies = Sequence[tuple[Tensor, Tensor]]
"""(destination, source) of each copy."""


@dataclass
class Transfer:
    """Copies under way. `Link.wait` before touching a destination, or reusing a source; it raises what went wrong."""

    nbytes: int
    event: torch.cuda.Event | None = None
    future: Future[None] | None = None
    error: Exception | None = None


class Link:
    """Moves KV between the tiers, one queue each way, and counts the bytes by cause.

    On CUDA each way is a stream of its own, host memory is pinned, and waiting is done by the device. On a CPU both
    tiers are ordinary memory: copies are made at once or, with `gbps`, by a worker that takes as long as a link of so
    many 1e9 bytes a second would. Times so obtained are simulated; bytes never are.
    `exposed_s`: how long computing had to wait for copies (known on a CPU alone).
    """

    def __init__(self, device: torch.device, gbps: float | None = None):
        self.device, self.gbps = device, gbps
        self.to_device_bytes: Counter[str] = Counter()
        self.to_host_bytes: Counter[str] = Counter()
        self.exposed_s = 0.0
        self.trace: Trace | None = None
        self._in, self._out = _Queue(self, "host to device", host=1), _Queue(self, "device to host", host=0)

    @property
    def simulated(self) -> bool:
        """Whether transfer times stand for another machine's."""
        return self.device.type == "cpu" and self.gbps is not None

    def fetch(self, copies: Copies, cause: str, after: Sequence[Transfer] = ()) -> Transfer:
        """Host to device; starts when `after` is done."""
        return self._in.send(copies, cause, self.to_device_bytes, after)

    def store(self, copies: Copies, cause: str, after: Sequence[Transfer] = ()) -> Transfer:
        """Device to host; fails if one of `after` did."""
        return self._out.send(copies, cause, self.to_host_bytes, after)

    def wait(self, transfer: Transfer | None) -> None:
        """Let what is computed from here on see the transfer's result."""
        if transfer is None:
            return
        if transfer.error is not None:
            raise transfer.error
        if transfer.event is not None:
            torch.cuda.current_stream(self.device).wait_event(transfer.event)
        elif transfer.future is not None and not transfer.future.done():
            start = time.perf_counter()
            transfer.future.result()
            end = time.perf_counter()
            self.exposed_s += end - start
            if self.trace is not None:
                self.trace.add("waiting", "exposed", start, end)
        elif transfer.future is not None:
            transfer.future.result()  # raises what the copy raised

    def wait_before_drop(self, transfer: Transfer | None) -> None:
        """Wait until the device copy that a transfer uses can be dropped: on CUDA not at all, as the allocator gives
        its memory to nobody before the transfer is done (`record_stream`)."""
        if transfer is None or transfer.event is None:
            self.wait(transfer)

    def wait_and_ignore(self, transfer: Transfer | None) -> None:
        """Wait for a transfer whose result nobody needs any more, failed or not."""
        with suppress(Exception):
            self.wait(transfer)

    def wait_on_host(self, transfer: Transfer | None) -> None:
        """Wait here, not on the device, until the transfer is done."""
        if transfer is not None and transfer.event is not None:
            transfer.event.synchronize()
        else:
            self.wait(transfer)


class _Queue:
    """One direction of the link."""

    def __init__(self, link: Link, name: str, host: int):
        self.link, self.name = link, name
        self.host = host  # which of (destination, source) is on the host
        self.stream = torch.cuda.Stream(link.device) if link.device.type == "cuda" else None
        self.worker: ThreadPoolExecutor | None = None
        self.free_at = 0.0

    def send(self, copies: Copies, cause: str, counter: Counter[str], after: Sequence[Transfer]) -> Transfer:
        nbytes = sum(source.numel() * source.element_size() for _, source in copies)
        counter[cause] += nbytes
        if self.stream is None and self.link.gbps is not None:
            self.worker = self.worker or ThreadPoolExecutor(1, thread_name_prefix=self.name)
            return Transfer(nbytes, future=self.worker.submit(self._slowly, copies, cause, nbytes, after))
        try:
            if self.stream is not None:
                return Transfer(nbytes, event=self._on_stream(self.stream, copies, after))
            self._in_order(copies, after)
        except Exception as error:
            return Transfer(nbytes, error=error)
        return Transfer(nbytes)

    def _in_order(self, copies: Copies, after: Sequence[Transfer]) -> None:
        for transfer in after:
            self.link.wait(transfer)
        self._copy(copies)

    def _on_stream(self, stream: torch.cuda.Stream, copies: Copies, after: Sequence[Transfer]) -> torch.cuda.Event:
        stream.wait_stream(torch.cuda.current_stream(self.link.device))  # sources are computed, destinations are free
        for pair in copies:  # before the first copy is under way, as a later one may fail
            pair[1 - self.host].record_stream(stream)
        with torch.cuda.stream(stream):
            self._in_order(list(contiguous_parts(copies, self.host)), after)
            event = torch.cuda.Event()
            event.record(stream)
        return event

    def _slowly(self, copies: Copies, cause: str, nbytes: int, after: Sequence[Transfer]) -> None:
        assert self.link.gbps is not None
        for transfer in after:
            if transfer.future is not None:
                transfer.future.result()
        start = max(time.perf_counter(), self.free_at)
        self._copy(copies)
        self.free_at = start + nbytes / (self.link.gbps * 1e9)
        time.sleep(max(0.0, self.free_at - time.perf_counter()))
        if self.link.trace is not None:
            self.link.trace.add(self.name, cause, start, time.perf_counter(), bytes=nbytes)

    @staticmethod
    @torch.inference_mode()
    def _copy(copies: Copies) -> None:
        for destination, source in copies:
            destination.copy_(source, non_blocking=True)


def contiguous_parts(copies: Copies, side: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The copies in parts whose destination (side 0) or source (side 1) is contiguous.

    PyTorch takes a CUDA copy that is not contiguous on the host through pageable memory: on the way in this processor
    fills that at once, though what it reads may still be on its way out; on the way out it waits.
    """
    for pair in copies:
        host = pair[side]
        order = sorted(range(host.dim()), key=host.stride, reverse=True)  # as they lie in memory, for tails by token
        destination, source = (tensor.permute(order) for tensor in pair)
        if host.permute(order).is_contiguous():
            yield destination, source
        else:
            yield from contiguous_parts(list(zip(destination, source, strict=True)), side)
