"""The link between host and device as it is: bandwidth each way, and copies beside computing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from experiments.lab.bench.gpu.machine import MEASURED, Machine, Row
from ttc.memory.link import Link, Transfer

MIB = 2**20
SIZES = (MIB, 64 * MIB, 512 * MIB)
REPEATS = 5


def rows(machine: Machine) -> Iterator[Row]:
    """Copies of each size both ways by `Link`, from pinned and from pageable memory; then copies
    while the device multiplies."""
    device = torch.device(machine.memory)
    link = Link(device)
    for size in SIZES[:1] if machine.rehearsed else SIZES:
        for pinned in (False,) if machine.rehearsed else (True, False):
            host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
            there = torch.zeros(size, dtype=torch.uint8, device=device)
            name = f"{size // MIB} MiB, {'pinned' if pinned else 'pageable'}"
            yield _bandwidth(machine, link, f"to the device, {name}", link.fetch, there, host)
            yield _bandwidth(machine, link, f"to the host, {name}", link.store, host, there)
    yield overlap(machine, link)


def _bandwidth(
    machine: Machine,
    link: Link,
    case: str,
    copy: Callable[..., Transfer],
    destination: torch.Tensor,
    source: torch.Tensor,
) -> Row:
    def once() -> None:
        link.wait(copy([(destination, source)], "bench"))

    seconds = timed(machine, once)
    return {"case": case, "verdict": MEASURED, "gb_per_s": source.nbytes / seconds / 1e9}


def overlap(machine: Machine, link: Link) -> Row:
    """Products alone, copies alone, and both at once. hidden: the part of the shorter of the two
    that takes no time of its own, 1 where copies and products do not hold each other up."""
    device = torch.device(machine.memory)
    width, copies = (64, 2) if machine.rehearsed else (4096, 8)
    dtype = torch.float32 if machine.rehearsed else torch.bfloat16
    matrix = torch.zeros(width, width, dtype=dtype).to(device)
    size = MIB if machine.rehearsed else 64 * MIB
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=not machine.rehearsed)
    there = torch.zeros(size, dtype=torch.uint8, device=device)

    def multiply(times: int) -> None:
        for _ in range(times):
            matrix @ matrix

    def send() -> list[Transfer]:
        return [link.fetch([(there, host)], "bench") for _ in range(copies)]

    def copy_alone() -> None:
        for transfer in send():
            link.wait(transfer)

    copy_s = timed(machine, copy_alone)
    one_s = timed(machine, lambda: multiply(1))
    times = max(1, min(10_000, round(copy_s / one_s)))  # about as long as the copies

    def both() -> None:
        under_way = send()
        multiply(times)
        for transfer in under_way:
            link.wait(transfer)

    product_s, both_s = timed(machine, lambda: multiply(times)), timed(machine, both)
    hidden = (copy_s + product_s - both_s) / min(copy_s, product_s)
    return {
        "case": "copies beside products",
        "verdict": MEASURED,
        "copy_ms": copy_s * 1e3,
        "product_ms": product_s * 1e3,
        "both_ms": both_s * 1e3,
        "hidden": hidden,
    }


def timed(machine: Machine, work: Callable[[], None]) -> float:
    """Seconds of some work, the least of several times, after one that is not counted: by events on
    a GPU."""
    work()
    return min(_once(machine, work) for _ in range(REPEATS))


def _once(machine: Machine, work: Callable[[], None]) -> float:
    machine.synchronize()
    if machine.rehearsed:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    work()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3
