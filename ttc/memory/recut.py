"""Cutting a run of KV into several, and joining several into one, within the tiers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ttc.memory.kv import KV
from ttc.memory.manager import KVMemory


def can_recut(memory: KVMemory, kvs: Sequence[KV]) -> bool:
    """Whether `kvs` are KV in the same layers, there is room to `recut` them, and no layer that all
    have on the device has to leave it."""
    if all(kv.block is not None for kv in kvs):
        return True
    if len({kv.acts for kv in kvs}) > 1:
        return False
    device_bytes, host_bytes = _needed_bytes(memory, kvs, _on_device(memory, kvs))
    return device_bytes <= memory.device.free_bytes and host_bytes <= memory.host.free_bytes


def recut(memory: KVMemory, kvs: Sequence[KV], lengths: Sequence[int]) -> list[KV]:
    """Cut the run of tokens that `kvs` hold into KV of `lengths` tokens, which take their place:
    one into several or several into one. They are as old as the last of `kvs`.

    Goes layer by layer, so that it needs room for one layer alone. A layer is cut on the device if
    all of it is there, else on the host; all layers on the host if the device has no room. Raises
    OutOfMemory, or what a copy raises, and leaves `kvs` whole then.
    """
    if all(kv.block is not None for kv in kvs):
        return _recut_blocks(memory, kvs, lengths)
    layers = memory.layers
    on_device = _on_device(memory, kvs)
    if _needed_bytes(memory, kvs, on_device)[0] > memory.device.free_bytes:
        nowhere = [False] * len(layers)
        if _needed_bytes(memory, kvs, nowhere)[1] <= memory.host.free_bytes:
            on_device = nowhere
    device_bytes, host_bytes = _needed_bytes(memory, kvs, on_device)
    memory.claim(memory.device, device_bytes)
    memory.require_host(host_bytes, kvs)
    for kv in kvs:
        memory.evict(kv, "join", [layer for layer in layers if not on_device[layer]])
        memory.wait_kv_on_host(kv)
    cut = [KV(len(layers), length, acts=kvs[0].acts, codec=kvs[0].codec) for length in lengths]
    done = 0
    memory.live.update(dict.fromkeys(cut))
    try:
        for layer in layers:
            _take_over(memory, kvs, cut, layer)
            done += 1
    except BaseException:  # an allocator that fails within the budget, or a cancelled call
        for layer in range(done):
            _take_over(memory, cut, kvs, layer)
        for kv in cut:
            memory.free(kv)
        raise
    _replace(memory, kvs, cut)
    return cut


def _recut_blocks(memory: KVMemory, kvs: Sequence[KV], lengths: Sequence[int]) -> list[KV]:
    """The same for KV whose layers are one tensor each."""
    cut: list[KV] = []
    try:
        for length in lengths:
            cut.append(memory.allocate(length))
    except BaseException:
        for kv in cut:
            memory.free(kv)
        raise
    _copy_run(
        [kv.block for kv in kvs if kv.block is not None],
        [kv.block for kv in cut if kv.block is not None],
    )
    _replace(memory, kvs, cut)
    return cut


def _replace(memory: KVMemory, kvs: Sequence[KV], cut: Sequence[KV]) -> None:
    """Let `cut` have the age of the last of `kvs`, which are freed."""
    made = set(cut)
    order: list[KV] = []
    for kv in memory.live:
        if kv is kvs[-1]:
            order += cut
        if kv not in made:
            order.append(kv)
    memory.live = dict.fromkeys(order)
    for kv in kvs:
        memory.free(kv)


def _on_device(memory: KVMemory, kvs: Sequence[KV]) -> list[bool]:
    return [all(kv.device[layer] for kv in kvs) for layer in memory.layers]


def _needed_bytes(
    memory: KVMemory, kvs: Sequence[KV], on_device: Sequence[bool]
) -> tuple[int, int]:
    """The room on the device and on the host that `recut` needs: for the largest layer of each
    tier, and for what has to be written back first. on_device: the layers that are cut there."""
    device_bytes = host_bytes = moved_bytes = 0
    for layer in memory.layers:
        lacking = [kv for kv in kvs if kv.host[layer] is None]
        nbytes = sum(memory.piece_bytes(kv, layer) for kv in kvs)
        if on_device[layer]:
            device_bytes = max(device_bytes, nbytes)
        else:
            moved_bytes += sum(memory.piece_bytes(kv, layer) for kv in lacking)
        if not on_device[layer] or not lacking:
            host_bytes = max(host_bytes, nbytes)
    return device_bytes, moved_bytes + host_bytes


def _take_over(memory: KVMemory, old: Sequence[KV], new: Sequence[KV], layer: int) -> None:
    """Let `new` take over a layer of `old`, in each tier that has all of it."""
    tiers = (
        (memory.device, [kv.device for kv in old], [kv.device for kv in new]),
        (memory.host, [kv.host for kv in old], [kv.host for kv in new]),
    )
    for tier, sources, targets in tiers:
        parts = [part for copies in sources if (part := copies[layer]) is not None]
        if len(parts) < len(old):
            continue
        buffers = [memory.buffer(kv, layer, host=tier is memory.host) for kv in new]
        _copy_run([copy.keys for copy in parts], [copy.keys for copy in buffers])
        _copy_run([copy.values for copy in parts], [copy.values for copy in buffers])
        tier.take(sum(memory.piece_bytes(kv, layer) for kv in new))
        for copies, copy in zip(targets, buffers, strict=True):
            copies[layer] = copy
    for tier, sources, _ in tiers:
        for kv, copies in zip(old, sources, strict=True):
            if copies[layer] is not None:
                tier.give(memory.piece_bytes(kv, layer))
                copies[layer] = None


def _copy_run(old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Copy a run from one tensor to several, or from several to one: (..., tokens, dim) each."""
    sources = old[0].split([part.shape[-2] for part in new], dim=-2) if len(old) == 1 else old
    targets = new[0].split([part.shape[-2] for part in old], dim=-2) if len(new) == 1 else new
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
