"""The baseline of the papers: whole layers move, once for every token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from ttc.attention.plan import Entry, private_entries, shared_entries
from ttc.attention.stream import Unit
from ttc.memory.kv import KV
from ttc.memory.tails import Tails
from ttc.residency.base import Offloading, Paths


@dataclass
class Layerwise(Offloading):
    """All branches advance together, as many whole layers resident as fit (LBS Eq. 1), the others fetched as each is
    computed and, with `prefetch`, while the one before it is: two layers of the budget are buffers then.

    shared: KV that branches share moves once; off, each branch's copy moves and is charged, as in LBS's baseline.
    """

    shared: bool = True

    _layers: int = field(init=False, repr=False, default=0)
    _charged: int = field(init=False, repr=False, default=0)
    _buffers: int = field(init=False, repr=False, default=0)
    """Bytes that a step's streams need, also between two of them."""

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        layers = self._place(max(self._live_tokens() + tokens, self._charged))
        return self.memory.allocate(tokens, device_layers=layers)

    def allocate_frozen(self, tokens: int, path: Sequence[KV] = ()) -> KV:
        """In the resident layers as far as there is room beside tails and buffers; the next step brings the rest."""
        layers, free = self._layers, self.memory.device.free_bytes - self._buffers
        while layers and tokens * sum(self.memory.layer_bytes_per_token[:layers]) > free:
            layers -= 1
        return self.memory.allocate(tokens, device_layers=layers)

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        tokens = self._charged_tokens(paths, capacity)
        self._charged = 0 if self.shared else tokens
        layers = self._place(tokens)
        return self.memory.allocate(capacity, rows=len(paths), device_layers=layers)

    def entries(self, paths: Paths) -> list[Entry]:
        counts = [1] * len(paths)
        return shared_entries(paths, counts) if self.shared else private_entries(paths, counts)

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        """All at once. On the host there must be room for the layers that leave, and for tails beside what they freeze
        into."""
        self.read_capacity()
        memory, new, tokens = self.memory, capacity * len(paths), self._charged_tokens(paths, capacity)
        layers, buffers = self.layers_in_device(tokens)
        inside = sum(memory.layer_bytes_per_token[:layers])
        outside = memory.bytes_per_token - inside
        room = self._live_tokens() * inside + 2 * new * inside + buffers
        frozen_inside = memory.device.budget_bytes is None or room <= memory.device.budget_bytes
        self._require_layers(layers, new * (outside + (outside if frozen_inside else memory.bytes_per_token)))
        return [list(range(len(paths)))]

    def require(self, tokens: int) -> None:
        self.read_capacity()
        layers, _ = self.layers_in_device(max(self._live_tokens() + tokens, self._charged))
        self._require_layers(layers, tokens * sum(self.memory.layer_bytes_per_token[layers:]))

    def _require_layers(self, layers: int, nbytes: int) -> None:
        """Raise OutOfMemory unless the host has room for `nbytes` beside all layers from `layers` on."""
        memory = self.memory
        leaving = sum(
            memory.layer_bytes(kv, layer)
            for kv in memory.live
            for layer in range(layers, len(memory.shapes))
            if kv.device[layer] is not None
        )
        memory.host.require(leaving + nbytes, beside_bytes=memory.host.used_bytes - memory.spare_bytes())

    def make_room(self, nbytes: int, keep: Set[KV] = frozenset()) -> bool:
        return self.memory.device.free_bytes >= nbytes  # layers leave by `_place` alone

    def units(
        self, layer: int, entries: Sequence[Entry], positions: Sequence[int], missing: Sequence[int]
    ) -> list[Unit]:
        return [Unit(layer, slice(None), tuple(missing))] if missing else []

    def with_tails(self, units: list[Unit], tails: Tails) -> list[Unit]:
        by_layer = {unit.layer: unit for unit in units}
        for layer, copy in enumerate(tails.kv.device):
            if copy is None:
                unit = by_layer.get(layer, Unit(layer, slice(None), ()))
                by_layer[layer] = replace(unit, tails=True)
        return [by_layer[layer] for layer in sorted(by_layer)]

    def layers_in_device(self, tokens: int) -> tuple[int, int]:
        """The layers that stay on the device when all hold `tokens` tokens (LBS Eq. 1, less the buffers), and the bytes
        of the buffers."""
        memory = self.memory
        budget, sizes = memory.device.budget_bytes, [tokens * n for n in memory.layer_bytes_per_token]
        if budget is None or sum(sizes) <= budget:
            return len(sizes), 0
        for layers in range(len(sizes) - 1, -1, -1):
            buffers = (2 if self.prefetch and layers < len(sizes) - 1 else 1) * max(sizes[layers:])
            if sum(sizes[:layers]) + buffers <= budget:
                return layers, buffers
        memory.device.require(max(sizes), beside_bytes=0)
        return 0, max(sizes)  # one buffer fits, two do not

    def _live_tokens(self) -> int:
        return sum(kv.tokens for kv in self.memory.live if kv.rows is None)

    def _charged_tokens(self, paths: Paths, capacity: int) -> int:
        """The tokens that a step charges a layer with: all there are, idle branches' too, as whole layers move."""
        private = 0 if self.shared else sum(len(segment.tokens) for path in paths for segment in path)
        return max(private, self._live_tokens()) + capacity * len(paths)

    def _place(self, tokens: int) -> int:
        """Bring all KV to the layers that are resident when the tree holds `tokens` tokens; returns how many."""
        memory = self.memory
        self._layers, self._buffers = self.layers_in_device(tokens)
        for kv in memory.live:
            memory.evict(kv, "evict", range(self._layers, len(memory.shapes)))
        own_bytes = sum(memory.tier_bytes(kv)[0] for kv in memory.live)
        self.crowd_out(tokens * sum(memory.layer_bytes_per_token[: self._layers]) + self._buffers - own_bytes)
        for kv in memory.live:
            memory.fetch(kv, "resident", range(self._layers))
            memory.wait_kv(kv)
        return self._layers
