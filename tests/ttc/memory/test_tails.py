"""Tails: how they lie on the host, how they get there, and what they freeze into."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ttc.memory.tails import Tails, freeze, keep_rows, mirror, write_new

from tests.helpers.engines import make_engine
from tests.helpers.links import Late
from tests.helpers.offloading import KIB, eight
from tests.helpers.ownership import assert_nothing_left
from ttc import BeamGroups
from ttc.memory.kv import KV, LayerKV, LayerShape
from ttc.memory.link import contiguous_parts
from ttc.memory.manager import KVMemory

SHAPES = (LayerShape(2, 4, 3), LayerShape(1, 2, 2))
CPU = torch.device("cpu")


def slow_memory(budget_bytes: int | None = None) -> KVMemory:
    """Its copies are made when somebody waits for them."""
    memory = KVMemory(SHAPES, torch.float32, CPU, budget_bytes, link_gbps=1e9)
    for queue in (memory.link.to_device, memory.link.to_host):
        queue.worker = Late()  # type: ignore[assignment]
    return memory


def fill(tails: KV) -> None:
    for copy in tails.device:
        assert copy is not None
        for tensor in copy.both:
            tensor.copy_(torch.rand(tensor.shape))


def parts(copy: LayerKV, rows: int, first: int, last: int) -> int:
    where = slice(rows), slice(None), slice(first, last)
    return len(list(contiguous_parts([(copy.keys[where], torch.empty(copy.keys[where].shape))], 0)))


def test_what_a_step_writes_to_host_tails_is_one_piece() -> None:
    """Else one token of many branches would be thousands of small copies."""
    host = LayerKV.empty(LayerShape(8, 4, 4), 32, 64, torch.float32, CPU, on_host=True)
    assert host.keys.shape == (64, 8, 32, 4) and host.values.shape == (64, 8, 32, 4)
    assert parts(host, 64, 5, 6) == 1 and parts(host, 64, 5, 13) == 1
    assert parts(host, 10, 5, 6) == 1 and parts(host, 10, 5, 13) == 8  # one piece for each token
    device = LayerKV.empty(LayerShape(8, 4, 4), 32, 64, torch.float32, CPU, on_host=False)
    assert parts(device, 64, 5, 6) == 64 * 8


def test_new_tokens_are_written_back_while_the_group_that_makes_them_decodes() -> None:
    engine = make_engine(memory=BeamGroups(14 * KIB, block_tokens=8))
    branches = eight(engine)
    link, memory, written = engine.memory.link, engine.memory, list[tuple[int, int]]()
    forward = engine.runner.forward

    def watched(tokens: Any, *arguments: Any, **options: Any) -> Any:
        written.append((len(tokens), link.to_host_bytes["write-back"]))
        return forward(tokens, *arguments, **options)

    engine.runner.forward = watched  # type: ignore[method-assign]
    engine.generate(branches, 20)
    first = [nbytes for _, nbytes in written[:20]]
    rows = written[0][0]
    assert rows < 8
    token_bytes = rows * memory.bytes_per_token
    # eight tokens at a time, a pass later
    assert first == [0] * 9 + [8 * token_bytes] * 8 + [16 * token_bytes] * 3
    *_, last = engine.memory.link.to_host_bytes["write-back"], written[-1][1]
    assert last == link.to_host_bytes["write-back"]  # nothing follows the last group
    assert_nothing_left(engine, branches)


def test_a_mirrored_tail_freezes_from_the_host() -> None:
    memory = slow_memory()
    tails = memory.allocate(6, rows=3)
    fill(tails)
    expected = [tuple(tensor.clone() for tensor in copy.both) for copy in tails.device if copy]
    mirror(memory, tails)
    write_new(memory, Tails(tails, 3, 4))
    assert tails.mirrored_tokens == 0  # too few to be worth a transfer
    write_new(memory, Tails(tails, 3, 4), least=1)
    keep_rows(memory, tails, [0, 2])
    write_new(memory, Tails(tails, 2, 5), least=1)
    before = memory.link.to_host_bytes.total()
    frozen = memory.allocate(5, device_layers=0)
    freeze(memory, tails, 1, 0, frozen)
    assert memory.link.to_host_bytes.total() == before and not memory.device.leaving_bytes
    for copy, old in zip(frozen.host, expected, strict=True):
        assert copy is not None
        assert all(
            (new == tensor[2, :, :5]).all() for new, tensor in zip(copy.both, old, strict=True)
        )
    for kv in (tails, frozen):
        memory.free(kv)
    assert memory.host.used_bytes == memory.device.used_bytes == 0


def test_a_mirror_is_given_up_where_the_host_has_no_room() -> None:
    memory = KVMemory(
        SHAPES, torch.float32, CPU, host_budget_bytes=10 * sum(s.elements for s in SHAPES) * 4
    )
    tails = memory.allocate(4, rows=1)
    fill(tails)
    mirror(memory, tails)
    write_new(memory, Tails(tails, 1, 4), least=1)
    frozen, other = memory.allocate(4, device_layers=0), memory.allocate(4, device_layers=0)
    assert None in tails.host
    freeze(memory, tails, 0, 0, frozen)
    for source, target in zip(tails.device, frozen.host, strict=True):
        assert source is not None and target is not None
        assert (target.keys == source.keys[0]).all() and (target.values == source.values[0]).all()
    write_new(memory, Tails(tails, 1, 4))
    mirror(memory, tails)
    assert tails.host == [None, None] and tails.mirrored_tokens is None
    for kv in (tails, frozen, other):
        memory.free(kv)


@pytest.mark.parametrize("room", [True, False])
def test_what_leaves_the_device_while_a_tail_freezes_is_counted(room: bool) -> None:
    token = sum(shape.elements for shape in SHAPES) * 4
    memory = slow_memory((8 + 4 * room) * token)
    tails = memory.allocate(4, rows=2)
    fill(tails)
    expected = [tensor[0].clone() for copy in tails.device if copy for tensor in copy.both]
    frozen = memory.allocate(4, device_layers=0)
    freeze(memory, tails, 0, 0, frozen)
    assert memory.device.leaving_bytes == (4 * token if room else 0)
    assert (
        memory.device.used_bytes == 8 * token and memory.device.peak_bytes == (8 + 4 * room) * token
    )
    keep_rows(memory, tails, [1])  # overwrites the row that is on its way
    memory.wait_kv_on_host(frozen)
    found = [tensor for copy in frozen.host if copy for tensor in copy.both]
    assert all((one == other).all() for one, other in zip(found, expected, strict=True))
    assert memory.device.leaving_bytes == 0


def test_whoever_needs_room_waits_for_what_is_on_its_way_out() -> None:
    token = sum(shape.elements for shape in SHAPES) * 4
    memory = slow_memory(8 * token)
    kv = memory.allocate(6)
    memory.write_back(kv, "test")
    written = kv.written
    assert written is not None
    memory.free(kv)
    assert memory.device.used_bytes == 0 and memory.device.leaving_bytes == 6 * token
    small = memory.allocate(2)  # fits beside it
    assert not written.done
    large = memory.allocate(6)
    assert written.done and memory.device.leaving_bytes == 0
    assert memory.device.peak_bytes == 8 * token
    memory.free(small)
    memory.free(large)
