"""Tails: the growing ends of the branches of a group, side by side in one buffer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ttc.errors import OutOfMemory
from ttc.memory.kv import KV, LayerKV
from ttc.memory.manager import KVMemory


@dataclass(frozen=True)
class Tails:
    """The tails that a plan may have to read: `rows` of `kv`, `tokens` of them filled, one more at
    each pass."""

    kv: KV
    rows: int
    tokens: int


WRITTEN_TOGETHER = 8
"""New tokens of tails that go to their host copy in one transfer."""


def mirror(memory: KVMemory, tails: KV) -> None:
    """Give new tails a host copy, which `write_new` fills while they grow; none where the host has
    no room for it and for what is frozen from it."""
    layers = memory.layers
    nbytes = sum(memory.piece_bytes(tails, layer) for layer in layers)
    if 2 * nbytes > memory.host.free_bytes:
        return
    memory.claim(memory.host, nbytes)
    for layer in layers[memory.fixed_layers :]:  # what is on the host already needs no copy
        tails.host[layer] = memory.buffer(tails, layer, host=True)
    memory.host.take(nbytes)
    tails.mirrored_tokens = 0


def write_new(memory: KVMemory, tails: Tails, least: int = WRITTEN_TOGETHER) -> None:
    """Send what the host copy of `tails` lacks to it, once it is at least so many tokens."""
    kv, first = tails.kv, memory.fixed_layers
    if None in kv.host[first:]:  # it was given up for room, or there never was one
        kv.mirrored_tokens = None
    if kv.mirrored_tokens is None or tails.tokens - kv.mirrored_tokens < least:
        return
    where = slice(tails.rows), slice(None), slice(kv.mirrored_tokens, tails.tokens)
    copies: list[tuple[Tensor, Tensor]] = []
    for copy, source in zip(kv.host[first:], kv.device[first:], strict=True):
        assert copy is not None and source is not None
        copies += [
            (new[where], old[where]) for new, old in zip(copy.both, source.both, strict=True)
        ]
    memory.send_to_host(kv, copies, "write-back")
    kv.mirrored_tokens = tails.tokens


def freeze(memory: KVMemory, tails: KV, row: int, first: int, kv: KV) -> None:
    """Fill `kv` with the tokens of a tail from `first` on, layer by layer.

    What goes to the host is taken from the tails' host copy where that has it. Else it leaves as a
    copy, for other rows may move to its place meanwhile; without room for the copy this waits until
    it has left.
    """
    span = slice(first, first + kv.tokens)
    layers = memory.layers
    if kv.block is not None and tails.block is not None:
        kv.write(kv.block, tails.block[:, :, row, :, span])
        return
    mirrored_tokens = 0 if None in tails.host[memory.fixed_layers :] else tails.mirrored_tokens or 0
    mirrored = mirrored_tokens >= span.stop and not kv.acts
    sources = [_source(tails, layer, kv, mirrored) for layer in layers]
    leaving = [n for n in layers if kv.device[n] is None and sources[n] is not tails.host[n]]
    nbytes = sum(memory.piece_bytes(kv, layer) for layer in leaving)
    copied = nbytes <= memory.device.free_bytes
    if copied:
        memory.claim(memory.device, nbytes)
    stores: list[tuple[Tensor, Tensor]] = []
    memory.wait_kv_on_host(tails)
    for layer, source in enumerate(sources):
        target = kv.device[layer] or kv.host[layer]
        assert target is not None
        for new, old in zip(target.both, source.both, strict=True):
            part = old[row, :, span]
            if layer not in leaving:
                kv.write(new, part)
            else:
                stores.append(
                    (new, part.clone(memory_format=torch.contiguous_format) if copied else part)
                )
    if stores:
        memory.device.take(nbytes if copied else 0)
        memory.send_to_host(kv, stores, "write-back")
        memory.device.give(nbytes if copied else 0, [kv.written])
        if not copied:
            memory.wait_kv_on_host(kv)


def _source(tails: KV, layer: int, kv: KV, mirrored: bool) -> LayerKV:
    """Where a layer of a tail that becomes `kv` is read. mirrored: its tokens are on the host,
    too."""
    near = (tails.inputs if layer in kv.acts and tails.inputs else tails).device[layer]
    from_host = near is None or (mirrored and kv.device[layer] is None)
    source = tails.host[layer] if from_host else near
    assert source is not None
    return source


def grown(memory: KVMemory, tails: KV, rows: int, tokens: int, filled: int) -> KV:
    """Larger tails on the device in place of these, which are freed; the first `filled` tokens of
    each are copied. Raises OutOfMemory, and leaves `tails` as they are, where there is no room for
    both."""
    larger = memory.allocate(tokens, rows=rows)
    if tails.states is not None and larger.states is not None:
        for part, tensor in tails.states.items():
            larger.states[part][: tails.rows] = tensor
    if tails.block is not None and larger.block is not None:
        larger.block[:, :, : tails.rows, :, :filled] = tails.block[:, :, :, :, :filled]
        memory.free(tails)
        return larger
    if tails.inputs is not None:
        try:
            larger.inputs = tail_inputs(memory, tokens, rows, tails.inputs.acts)
        except OutOfMemory:
            memory.free(larger)
            raise
    for one, other in ((tails, larger), (tails.inputs, larger.inputs)):
        for old, new in zip(one.device, other.device, strict=True) if one and other else ():
            for source, target in zip(old.both, new.both, strict=True) if old and new else ():
                target[: source.shape[0], :, :filled] = source[:, :, :filled]
    memory.free(tails)
    return larger


def tail_inputs(memory: KVMemory, tokens: int, rows: int, layers: Collection[int]) -> KV:
    """Room on the device for the inputs of some layers' K and V projections, for tails of this
    size."""
    inputs = KV(len(memory.shapes), tokens, rows, acts=layers)
    inputs.borrowed = True
    return memory.fill(inputs, layers, ())


def keep_rows(memory: KVMemory, tails: KV, rows: Sequence[int]) -> None:
    """Close the gaps that other rows leave: `rows`, ascending, become the first ones."""
    moves = [(new, old) for new, old in enumerate(rows) if new != old]
    if tails.block is not None:
        for new, old in moves:
            tails.block[:, :, new] = tails.block[:, :, old]
        return
    if moves and any(tails.host):
        memory.wait_kv_on_host(tails)
    for copy in [*tails.device, *tails.host, *(tails.inputs.device if tails.inputs else ())]:
        for tensor in copy.both if moves and copy is not None else ():
            for new, old in moves:
                tensor[new] = tensor[old]
