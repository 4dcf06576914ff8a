"""Tails: the growing ends of the branches of a group, side by side in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ttc.memory.kv import KV
from ttc.memory.manager import KVMemory


@dataclass(frozen=True)
class Tails:
    """The tails that a plan may have to read: `rows` of `kv`, `tokens` of them filled, one more at each pass."""

    kv: KV
    rows: int
    tokens: int


def freeze(memory: KVMemory, tails: KV, row: int, first: int, kv: KV) -> None:
    """Fill `kv` with the tokens of a tail from `first` on, layer by layer."""
    stores, span = [], slice(first, first + kv.tokens)
    memory.wait_kv_on_host(tails)
    for layer in range(len(memory.shapes)):
        source = tails.device[layer] or tails.host[layer]
        target = kv.device[layer] or kv.host[layer]
        assert source is not None and target is not None
        for new, old in zip(target.both, source.both, strict=True):
            if tails.device[layer] is not None and kv.device[layer] is None:
                # never a view: other rows move to this place while the copy may be under way
                stores.append((new, old[row, :, span].clone(memory_format=torch.contiguous_format)))
            else:
                new.copy_(old[row, :, span])
    if stores:
        memory.send_to_host(kv, stores, "write-back")


def keep_rows(memory: KVMemory, tails: KV, rows: Sequence[int]) -> None:
    """Close the gaps that other rows leave: `rows`, ascending, become the first ones."""
    moves = [(new, old) for new, old in enumerate(rows) if new != old]
    if moves and None in tails.device:
        memory.wait_kv_on_host(tails)
    for copy in [*tails.device, *tails.host]:
        for tensor in copy.both if moves and copy is not None else ():
            for new, old in moves:
                tensor[new] = tensor[old]
