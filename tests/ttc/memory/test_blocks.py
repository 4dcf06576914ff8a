"""KV whose layers lie in one block does what KV with a buffer for each layer does."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ttc.memory.recut import can_recut, recut
from ttc.memory.tails import freeze, grown, keep_rows

from ttc.memory.kv import KV, LayerKV, LayerShape
from ttc.memory.manager import KVMemory

ALIKE = (LayerShape(2, 4, 4), LayerShape(2, 4, 4, window=8), LayerShape(2, 4, 4))
CPU = torch.device("cpu")


def memory(
    by_layer: bool, shapes: tuple[LayerShape, ...] = ALIKE, budget_bytes: int | None = None
) -> KVMemory:
    return KVMemory(shapes, torch.float32, CPU, budget_bytes, by_layer=by_layer)


def filled(kv: KV) -> KV:
    """Each layer's keys and values with numbers of its own."""
    for layer in range(len(kv.device)):
        for part, tensor in enumerate(kv.on_device(layer).both):
            tensor.copy_(
                torch.arange(tensor.numel()).view(tensor.shape) + 10_000 * layer + 1000 * part
            )
    return kv


def contents(kv: KV) -> list[torch.Tensor]:
    return [tensor for layer in range(len(kv.device)) for tensor in kv.on_device(layer).both]


def assert_equal(one: KV, other: KV) -> None:
    for mine, theirs in zip(contents(one), contents(other), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("rows", [None, 3])
def test_a_layer_of_a_block_says_where_its_views_are(rows: int | None) -> None:
    kv = memory(by_layer=False).allocate(5, rows=rows)
    assert kv.block is not None
    for layer in range(len(ALIKE)):
        found = kv.on_device(layer)
        assert found.place == LayerKV(found.keys, found.values).place
        assert found.keys.shape == ((2, 5, 4) if rows is None else (3, 2, 5, 4))


@given(
    rows=st.integers(1, 5),
    tokens=st.integers(1, 20),
    cuts=st.sets(st.integers(1, 19), max_size=4),
    more=st.integers(0, 4),
    data=st.data(),
)
def test_blocks_are_frozen_grown_moved_and_cut_as_layers_are(
    rows: int, tokens: int, cuts: set[int], more: int, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, rows - 1))
    first = data.draw(st.integers(0, tokens - 1))
    count = data.draw(st.integers(1, tokens - first))
    kept = sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1)))
    lengths = [b - a for a, b in pairwise([0, *sorted(cut for cut in cuts if cut < count), count])]
    made = []
    for by_layer in (True, False):
        within = memory(by_layer)
        tails = filled(within.allocate(tokens, rows=rows))
        frozen = within.allocate(count)
        freeze(within, tails, row, first, frozen)
        parts = recut(within, [frozen], lengths)
        assert can_recut(within, parts)
        (whole,) = recut(within, parts, [count])
        tails = grown(within, tails, rows + more, tokens + more, tokens)
        keep_rows(within, tails, kept)
        assert (whole.block is None) == (tails.block is None) == by_layer
        assert list(within.live) == [whole, tails]
        made.append((whole, [tensor[: len(kept), :, :tokens] for tensor in contents(tails)]))
        assert within.device.used_bytes == within.bytes_per_token * (
            count + (rows + more) * (tokens + more)
        )
        for kv in list(within.live):
            within.free(kv)
        assert within.device.used_bytes == 0
    (_, layered), (_, blocks) = made
    for mine, theirs in zip(layered, blocks, strict=True):
        assert torch.equal(mine, theirs)


def test_what_is_cut_of_a_block_is_what_was_there() -> None:
    layers, blocks = memory(by_layer=True), memory(by_layer=False)
    one, other = filled(layers.allocate(7)), filled(blocks.allocate(7))
    for mine, theirs in zip(
        recut(layers, [one], [2, 5]), recut(blocks, [other], [2, 5]), strict=True
    ):
        assert_equal(mine, theirs)


def test_layers_that_differ_and_budgets_have_no_blocks() -> None:
    """A budget counts each layer that is cut; a block is given back whole."""
    differ = (LayerShape(2, 4, 4), LayerShape(1, 4, 4))
    wide = (LayerShape(2, 6, 4), LayerShape(2, 6, 4))
    for shapes, budget_bytes in ((differ, None), (wide, None), (ALIKE, 10_000)):
        assert memory(False, shapes, budget_bytes).allocate(3).block is None


def test_a_block_that_cannot_be_had_leaves_the_others_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    within = memory(by_layer=False)
    kv = filled(within.allocate(7))
    before = [tensor.clone() for tensor in contents(kv)]
    allocate, calls = within.allocate, []

    def failing(tokens: int) -> KV:
        calls.append(tokens)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no room")
        return allocate(tokens)

    monkeypatch.setattr(within, "allocate", failing)
    with pytest.raises(torch.OutOfMemoryError):
        recut(within, [kv], [3, 4])
    assert list(within.live) == [kv] and within.device.used_bytes == 7 * within.bytes_per_token
    for mine, old in zip(contents(kv), before, strict=True):
        assert torch.equal(mine, old)
