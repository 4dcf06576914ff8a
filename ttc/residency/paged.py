"""HELM's runtime: pages that leave the device oldest first, and attention that streams them
back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ttc.attention.entry import Reads
from ttc.attention.stream import KVReader
from ttc.checks import Share
from ttc.memory.kv import KV
from ttc.residency.base import Paths
from ttc.residency.offloading import Offloading


@dataclass
class Paged(Offloading):
    """Pages of `block_tokens` tokens (HELM section 4.2.2, Algorithm 3): context is bounded by host
    memory.

    watermark: the fullness of the device at which the oldest pages are written to the host. They
        leave when their room is needed, so that new KV finds it without waiting.
    """

    watermark: Share = 0.8

    _fresh: set[KV] = field(init=False, repr=False, default_factory=set)
    """Pages that the next pass fills: too early to write them."""

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        roomy = self.make_room(self.memory.bytes_of(tokens))
        kv = self.memory.allocate(tokens, device_layers=None if roomy else 0)
        self._fresh.add(kv)
        self._write_oldest()
        return kv

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        self.make_room(self.memory.tail_bytes(capacity, len(paths)))
        tails = super().enter(paths, upcoming, capacity)
        self._write_oldest()
        return tails

    def stream(self, reads: Reads) -> KVReader | None:
        self._fresh.clear()  # whatever is allocated after this pass finds them filled
        return super().stream(reads)

    def _write_oldest(self) -> None:
        spare = int((1 - self.watermark) * (self.device.budget_bytes or 0))
        self.write_ahead(spare, self._fresh, self.eviction_order())
