"""How much device memory inference at a long context needs: the estimate of HeadInfer.

"HeadInfer: Memory-Efficient LLM Inference by Head-wise Offloading", appendix A.4, Tables 9-13.
There S is the context, L the layers, H the heads, D_h the head dimension, D the hidden and I the
MLP's intermediate size. The formulas count elements. Here each is in bytes, and KV counts keys and
values. H is the number of KV heads, which is what the tables use. What the paper prints as GB is
GiB (2**30 bytes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ttc.checks import check_whole
from ttc.cost_model.dims import KVShape
from ttc.errors import InvalidInput

PING_PONG = 2
"""Buffers of an offloading method: one is computed on while the other is filled."""


@dataclass(frozen=True, kw_only=True)
class ModelDims(KVShape):
    """The sizes of a model that set all of its memory. `bytes_per_element` is that of KV and
    activations."""

    hidden: int
    intermediate: int
    weights_bytes: int


@dataclass(frozen=True)
class Footprint:
    """Bytes on the device while `method` serves a context, and the bytes of KV on device and host
    together."""

    method: str
    weights_bytes: int
    kv_bytes: int
    activation_bytes: int
    total_kv_bytes: int

    @property
    def total_bytes(self) -> int:
        """M_total of A.4: weights, KV and activations on the device."""
        return self.weights_bytes + self.kv_bytes + self.activation_bytes


def kv_cache_bytes(dims: ModelDims, context: int) -> int:
    """S × L × D_h × H: bytes of keys and values of `context` tokens in all layers."""
    return dims.beam_bytes(context)


def quantised_kv_bytes(dims: ModelDims, context: int) -> int:
    """S × L × D_h × H / 4: bytes of the same KV at 4 bits an element. Scales and zero points are
    not counted."""
    return kv_cache_bytes(dims, context) // dims.bytes_per_element // 2


def layerwise_kv_bytes(dims: ModelDims, context: int) -> int:
    """S × D_h × H × 2: device bytes of KV when layers are offloaded: one layer, twice for the
    ping-pong."""
    return PING_PONG * kv_cache_bytes(dims, context) // dims.layers


def headwise_kv_bytes(dims: ModelDims, context: int) -> int:
    """S × D_h × 2: device bytes of KV when heads are offloaded: one head of a layer, twice for the
    ping-pong."""
    return PING_PONG * kv_cache_bytes(dims, context) // (dims.layers * dims.kv_heads)


def activation_bytes(dims: ModelDims, tokens: int) -> int:
    """S × D + 2 × S × I: bytes of activations when `tokens` tokens pass at once, the context or a
    chunk of it."""
    return tokens * (dims.hidden + 2 * dims.intermediate) * dims.bytes_per_element


class Method(NamedTuple):
    """The KV that a method of A.4 keeps on the device and in all, and whether it prefills in
    chunks."""

    kv_bytes: Callable[[ModelDims, int], int]
    total_kv_bytes: Callable[[ModelDims, int], int]
    chunked: bool = False


METHODS = {
    "standard": Method(kv_cache_bytes, kv_cache_bytes),
    "chunked_prefill": Method(kv_cache_bytes, kv_cache_bytes, chunked=True),
    "kv_quant_4bit": Method(quantised_kv_bytes, quantised_kv_bytes),
    "layerwise_offload": Method(layerwise_kv_bytes, kv_cache_bytes),
    "headwise": Method(headwise_kv_bytes, kv_cache_bytes, chunked=True),
}


def estimate(method: str, dims: ModelDims, context: int, chunk: int = 10 * 1024) -> Footprint:
    """The memory that `method` needs for `context` tokens.

    chunk: tokens of a prefill chunk, for the methods that prefill in chunks. The paper's tables use
    10K. Raises `InvalidInput` for an unknown method or sizes below 1.
    Source: HeadInfer, A.4.
    """
    if method not in METHODS:
        raise InvalidInput(f"method={method!r} is unknown; choose one of {', '.join(METHODS)}")
    check_whole("context", context, 1)
    check_whole("chunk", chunk, 1)
    of = METHODS[method]
    return Footprint(
        method=method,
        weights_bytes=dims.weights_bytes,
        kv_bytes=of.kv_bytes(dims, context),
        activation_bytes=activation_bytes(dims, min(chunk, context) if of.chunked else context),
        total_kv_bytes=of.total_kv_bytes(dims, context),
    )


def longest_context(
    method: str,
    dims: ModelDims,
    device_bytes: int,
    host_bytes: int | None = None,
    chunk: int = 10 * 1024,
) -> int:
    """The most tokens that `method` serves with so much device memory; 0 where not one fits.

    host_bytes: room for the KV of methods that offload, None for enough. Errors and chunk as in
    `estimate`.
    Source: HeadInfer, Table 2, by the estimate of A.4.
    """
    offloads = method in METHODS and METHODS[method].kv_bytes is not METHODS[method].total_kv_bytes

    def fits(context: int) -> bool:
        footprint = estimate(method, dims, context, chunk)
        within_host = host_bytes is None or not offloads or footprint.total_kv_bytes <= host_bytes
        return footprint.total_bytes <= device_bytes and within_host

    if not fits(1):
        return 0
    fitting, too_long = 1, 2
    while fits(too_long):
        fitting, too_long = too_long, 2 * too_long
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        fitting, too_long = (middle, too_long) if fits(middle) else (fitting, middle)
    return fitting
