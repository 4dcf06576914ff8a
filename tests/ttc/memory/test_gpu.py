"""A CUDA link: copies of megabytes, late on purpose, are waited for, measured, and not
overtaken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from ttc.memory.tails import Tails, freeze, mirror, write_new

from ttc.memory.kv import KV, LayerKV, LayerShape
from ttc.memory.manager import KVMemory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LONG = 100_000_000
"""Cycles: some fifty milliseconds."""

SHAPES = (LayerShape(8, 128, 128),) * 4
TOKENS = 1024  # 8 MiB a layer in float32


def make_memory() -> KVMemory:
    return KVMemory(SHAPES, torch.float32, torch.device("cuda"))


def sleep_on(stream: torch.cuda.Stream | None) -> None:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)


def filled(memory: KVMemory, value: float) -> KV:
    kv = memory.allocate(TOKENS)
    for copy in kv.device:
        assert copy is not None
        copy.keys.fill_(value)
        copy.values.fill_(-value)
    return kv


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
    kv = filled(memory, 3)
    memory.evict(kv, "test")
    memory.wait_kv_on_host(kv)
    before = memory.link.exposed_s
    sleep_on(memory.link.to_device.stream)
    memory.fetch(kv, "test")
    memory.wait_kv(kv)
    assert values([kv.on_device(layer) for layer in range(4)]) == {3.0, -3.0}
    assert memory.link.exposed_s - before > 0.01
    waited = memory.link.exposed_s
    memory.wait_kv(kv)  # it is there
    assert memory.link.exposed_s == waited


def test_a_store_waits_for_what_it_stores() -> None:
    memory = make_memory()
    kv = memory.allocate(TOKENS)
    torch.cuda._sleep(LONG)
    for layer in range(4):
        kv.on_device(layer).keys.fill_(7)
        kv.on_device(layer).values.fill_(7)
    memory.write_back(kv, "test")
    memory.wait_kv_on_host(kv)
    assert values(kv.host) == {7.0}


def test_memory_that_leaves_is_not_used_again_before_it_has_left() -> None:
    memory = make_memory()
    kv = filled(memory, 3)
    sleep_on(memory.link.to_host.stream)
    memory.evict(kv, "test")
    size = TOKENS * memory.bytes_per_token
    assert memory.device.used_bytes == 0 and memory.device.leaving_bytes == size
    for _ in range(4):
        filled(memory, 9)
    memory.wait_kv_on_host(kv)
    assert values(kv.host) == {3.0, -3.0}
    assert memory.device.leaving_bytes == 0


def test_whoever_needs_the_room_waits_for_it() -> None:
    memory = make_memory()
    size = TOKENS * memory.bytes_per_token
    memory.device.budget_bytes = size
    kv = filled(memory, 3)
    sleep_on(memory.link.to_host.stream)
    memory.evict(kv, "test")
    assert kv.written is not None and not kv.written.done
    other = filled(memory, 9)
    assert kv.written.done and memory.device.peak_bytes == size
    memory.free(other)


def test_tails_freeze_from_a_host_copy_that_comes_late() -> None:
    memory = make_memory()
    tails = memory.allocate(32, rows=16)
    for row in range(16):
        for copy in tails.device:
            assert copy is not None
            copy.keys[row], copy.values[row] = row, -row
    mirror(memory, tails)
    sleep_on(memory.link.to_host.stream)
    write_new(memory, Tails(tails, 16, 32))
    frozen = memory.allocate(32, device_layers=0)
    freeze(memory, tails, 5, 0, frozen)
    assert values(frozen.host) == {5.0, -5.0}
