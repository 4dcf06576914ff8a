"""Two buffers: which layers they hold, what arrives, and that a buffer is taken again only when it
is free."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ttc.memory.link import Link
from ttc.placement.weight_stream import HostWeights, WeightStream

CPU = torch.device("cpu")


def stream(layers: int, gbps: float | None = None) -> WeightStream:
    weights = [
        [torch.full((3, 5), n), torch.full((7,), 10.0 * n, dtype=torch.float64)]
        for n in range(layers)
    ]
    return WeightStream([HostWeights(its, CPU) for its in weights], Link(CPU, gbps), CPU)


def compute(found: WeightStream, layer: int) -> None:
    first, second = found.arrive(layer)
    assert torch.equal(first, torch.full((3, 5), layer)) and second.dtype == torch.float64
    assert torch.equal(second, torch.full((7,), 10.0 * layer, dtype=torch.float64))
    found.leave(layer)


def test_two_layers_are_always_ahead() -> None:
    found = stream(5)
    for layer in [0, 1, 2, 3, 4, 0, 1]:
        compute(found, layer)
        assert {held for held in found.buffered} == {(layer + 1) % 5, (layer + 2) % 5}


def test_what_fits_the_buffers_crosses_once() -> None:
    found = stream(2)
    for layer in [0, 1] * 3:
        compute(found, layer)
    assert found.link.to_device_bytes["weights"] == sum(
        layer.memory.numel() for layer in found.layers
    )


@given(st.lists(st.integers(0, 4), max_size=12), st.sampled_from([None, 0.001]))
def test_layers_arrive_whole_in_whatever_order_they_are_asked_for(
    order: list[int], gbps: float | None
) -> None:
    found = stream(5, gbps)
    for layer in order:
        compute(found, layer)


@pytest.mark.parametrize("computed", [1, 2, 3, 4])
def test_a_layer_out_of_turn_takes_the_buffer_that_is_needed_last(computed: int) -> None:
    """The next two layers are there, numbers n and n + 1 of five. Layer n + 3 comes in place of n +
    1: after it follow n + 4, n, and n + 1 last."""
    found = stream(5)
    for layer in range(computed):
        compute(found, layer)
    found.arrive((computed + 3) % 5)
    assert {held for held in found.buffered} == {computed % 5, (computed + 3) % 5}


def test_only_what_comes_ahead_gives_way_to_other_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    found, seen = stream(5), list[bool]()
    fetch = found.link.fetch

    def watched(copies: Any, cause: str, after: Any = (), later: bool = False) -> Any:
        seen.append(later)
        return fetch(copies, cause, after, later)

    monkeypatch.setattr(found.link, "fetch", watched)
    compute(found, 0)
    # the first has to be waited for; the next two come meanwhile
    assert seen == [False, True, True]
    compute(found, 1)
    assert seen[3:] == [True]
