"""A CUDA link: copies of megabytes, late on purpose, are waited for, measured, and not
overtaken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from ttc.memory.kv import LayerKV, LayerShape
from ttc.memory.manager import Memory
from ttc.memory.storage import Storage

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LONG = 100_000_000
"""Cycles: some fifty milliseconds."""

SHAPES = (LayerShape(8, 128, 128),) * 4
TOKENS = 1024  # 8 MiB a layer in float32


def make_memory() -> Memory:
    return Memory(SHAPES, torch.float32, torch.device("cuda"))


def sleep_on(stream: torch.cuda.Stream | None) -> None:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)


def filled(memory: Memory, value: float) -> Storage:
    storage = memory.begin(0, TOKENS)
    storage.filled = TOKENS
    for copy in storage.device:
        assert copy is not None
        copy.keys.fill_(value)
        copy.values.fill_(-value)
    return storage


def values(copies: Sequence[LayerKV | None]) -> set[float]:
    return {
        float(x)
        for copy in copies
        if copy
        for tensor in copy.both
        for x in (tensor.min(), tensor.max())
    }


def test_a_late_fetch_is_waited_for_and_measured() -> None:
    memory = make_memory()
    storage = filled(memory, 3)
    memory.evict(storage, "test")
    memory.link.wait_on_host(storage.written)
    before = memory.link.exposed_s
    sleep_on(memory.link.to_device.stream)
    memory.fetch(storage, "test")
    memory.wait([storage])
    assert values(storage.device) == {3.0, -3.0}
    assert memory.link.exposed_s - before > 0.01
    waited = memory.link.exposed_s
    memory.wait([storage])  # it is there
    assert memory.link.exposed_s == waited


def test_a_store_waits_for_what_it_stores() -> None:
    memory = make_memory()
    storage = filled(memory, 3)
    torch.cuda._sleep(LONG)
    for copy in storage.device:
        assert copy is not None
        copy.keys.fill_(7)
        copy.values.fill_(7)
    memory.write_back(storage, "test")
    memory.link.wait_on_host(storage.written)
    assert values(storage.host) == {7.0}


def test_memory_that_leaves_is_not_used_again_before_it_has_left() -> None:
    memory = make_memory()
    storage = filled(memory, 3)
    sleep_on(memory.link.to_host.stream)
    memory.evict(storage, "test")
    size = TOKENS * memory.bytes_per_token
    assert memory.device.used_bytes == 0 and memory.device.leaving_bytes == size
    for _ in range(4):
        filled(memory, 9)
    memory.link.wait_on_host(storage.written)
    assert values(storage.host) == {3.0, -3.0}
    assert memory.device.leaving_bytes == 0


def test_whoever_needs_the_room_waits_for_it() -> None:
    memory = make_memory()
    size = TOKENS * memory.bytes_per_token
    memory.device.budget_bytes = size
    storage = filled(memory, 3)
    sleep_on(memory.link.to_host.stream)
    memory.evict(storage, "test")
    assert storage.written is not None and not storage.written.done
    other = filled(memory, 9)
    assert storage.written.done and memory.device.peak_bytes == size
    memory.free(other)


def test_a_fetch_waits_for_a_host_copy_that_comes_late() -> None:
    memory = make_memory()
    storage = filled(memory, 3)
    memory.mirror(storage)
    sleep_on(memory.link.to_host.stream)
    memory.write_on(storage, TOKENS // 2, "test")
    memory.write_on(storage, TOKENS, "test")
    memory.evict(storage, "test")
    memory.fetch(storage, "test")
    memory.wait([storage])
    assert values(storage.device) == {3.0, -3.0}
