"""The memory estimate: a small model by hand, the paper's Llama3-8B, ordering of the methods, bad
input."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.lab.paper.footprint import (
    METHODS,
    Footprint,
    ModelDims,
    estimate,
    longest_context,
)
from ttc.errors import InvalidInput

SMALL = ModelDims(layers=3, kv_heads=2, head_dim=4, hidden=8, intermediate=16, weights_bytes=1000)

dims = st.builds(
    ModelDims,
    layers=st.integers(2, 6),
    kv_heads=st.integers(1, 6),
    head_dim=st.integers(1, 8),
    hidden=st.integers(1, 32),
    intermediate=st.integers(1, 64),
    weights_bytes=st.integers(1, 10_000),
    bytes_per_element=st.sampled_from((2, 4)),
)
lengths = st.integers(1, 300)

# A head's KV of 10 tokens in one layer: 10 × 4 × 2 (K and V) × 2 bytes = 160; a layer has 2 heads,
# the model 3 layers. Activations take (8 + 2 × 16) × 2 = 80 bytes a token; a chunk is 4 tokens.
BY_HAND = [
    Footprint("standard", 1000, kv_bytes=960, activation_bytes=800, total_kv_bytes=960),
    Footprint("chunked_prefill", 1000, kv_bytes=960, activation_bytes=320, total_kv_bytes=960),
    Footprint("kv_quant_4bit", 1000, kv_bytes=240, activation_bytes=800, total_kv_bytes=240),
    Footprint("layerwise_offload", 1000, kv_bytes=640, activation_bytes=800, total_kv_bytes=960),
    Footprint("headwise", 1000, kv_bytes=320, activation_bytes=320, total_kv_bytes=960),
]


@pytest.mark.parametrize("expected", BY_HAND, ids=lambda footprint: footprint.method)
def test_a_small_model_by_hand(expected: Footprint) -> None:
    assert estimate(expected.method, SMALL, context=10, chunk=4) == expected


def test_every_method_is_checked_by_hand() -> None:
    assert [footprint.method for footprint in BY_HAND] == list(METHODS)


@given(dims, lengths, lengths)
def test_order_of_the_methods(model: ModelDims, context: int, chunk: int) -> None:
    of = {method: estimate(method, model, context, chunk) for method in METHODS}
    assert of["headwise"].kv_bytes <= of["layerwise_offload"].kv_bytes <= of["standard"].kv_bytes
    assert of["headwise"].kv_bytes * model.kv_heads == of["layerwise_offload"].kv_bytes
    assert of["kv_quant_4bit"].kv_bytes * model.bytes_per_element * 2 == of["standard"].kv_bytes
    assert of["chunked_prefill"].activation_bytes <= of["standard"].activation_bytes
    assert all(footprint.total_bytes <= of["standard"].total_bytes for footprint in of.values())
    assert all(footprint.kv_bytes <= footprint.total_kv_bytes for footprint in of.values())


@pytest.mark.parametrize(
    "name",
    [
        "layers",
        "kv_heads",
        "head_dim",
        "hidden",
        "intermediate",
        "weights_bytes",
        "bytes_per_element",
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_dimensions_are_positive(name: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"{name}={value} must be at least 1"):
        replace(SMALL, **{name: value})


def test_bad_requests_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match="method='magic' is unknown; choose one of standard, chunked_prefill"
    ):
        estimate("magic", SMALL, context=10)
    with pytest.raises(InvalidInput, match="context=0 must be at least 1"):
        estimate("standard", SMALL, context=0)
    with pytest.raises(InvalidInput, match="chunk=-4 must be at least 1"):
        estimate("headwise", SMALL, context=10, chunk=-4)


@given(
    dims,
    st.sampled_from(sorted(METHODS)),
    st.integers(1, 200_000),
    st.none() | st.integers(1, 50_000),
)
def test_the_longest_context_fits_and_the_next_does_not(
    shape: ModelDims, method: str, device_bytes: int, host_bytes: int | None
) -> None:
    def fits(context: int) -> bool:
        footprint = estimate(method, shape, context, chunk=4)
        kept = METHODS[method].kv_bytes is METHODS[method].total_kv_bytes
        on_host = host_bytes is None or kept or footprint.total_kv_bytes <= host_bytes
        return footprint.total_bytes <= device_bytes and on_host

    longest = longest_context(method, shape, device_bytes, host_bytes, chunk=4)
    assert not fits(longest + 1)
    assert longest == 0 or fits(longest)
