"""The baseline of the papers: whole layers move, once for every token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ttc.memory import KV
from ttc.plan import Entry, private_entries, shared_entries
from ttc.residency.base import Offloading, Paths
from ttc.stream import TAILS, Tails, Unit


@dataclass
class Layerwise(Offloading):
    """All branches advance together, as many whole layers resident as fit (LBS Eq. 1), the others fetched as each is
    computed and, with `prefetch`, while the one before it is: two layers of the budget are buffers then.

    shared: KV that branches share moves once; off, each branch's copy moves and is charged, as in LBS's baseline.
    """

    shared: bool = True

    _layers: int = field(init=False, repr=False, default=0)
    _charged: int = field(init=False, repr=False, default=0)

    def allocate(self, tokens: int, needed: Iterable[KV] = ()) -> KV:
        layers = self._settle(max(self._live_tokens() + tokens, self._charged))
        return self.memory.allocate(tokens, device_layers=layers)

    def allocate_frozen(self, tokens: int) -> KV:
        """In the resident layers as far as there is room beside the tails; the next step brings the rest."""
        layers, free = self._layers, self.memory.device.free_bytes
        while layers and tokens * sum(self.memory.layer_bytes_per_token[:layers]) > free:
            layers -= 1
        return self.memory.allocate(tokens, device_layers=layers)

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        held = sum(len(s.tokens) for path in paths for s in path) if not self.shared else self._live_tokens()
        tokens = held + capacity * len(paths)
        self._charged = 0 if self.shared else tokens
        layers = self._settle(tokens)
        return self.memory.allocate(capacity, rows=len(paths), device_layers=layers)

    def entries(self, paths: Paths) -> list[Entry]:
        counts = [1] * len(paths)
        return shared_entries(paths, counts) if self.shared else private_entries(paths, counts)

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        self.require(capacity * len(paths))
        return [list(range(len(paths)))]

    def make_room(self, nbytes: int, keep: Iterable[KV] = ()) -> bool:
        return self.memory.device.free_bytes >= nbytes  # layers leave by `_settle` alone

    def units(
        self, layer: int, entries: Sequence[Entry], positions: Sequence[int], missing: Sequence[int]
    ) -> list[Unit]:
        return [Unit(layer, slice(None), tuple(missing))] if missing else []

    def with_tails(self, units: list[Unit], tails: Tails) -> list[Unit]:
        by_layer = {unit.layer: unit for unit in units}
        for layer, copy in enumerate(tails.kv.device):
            if copy is None:
                unit = by_layer.get(layer, Unit(layer, slice(None), ()))
                by_layer[layer] = replace(unit, parts=(TAILS, *unit.parts))
        return [by_layer[layer] for layer in sorted(by_layer)]

    def layers_in_device(self, tokens: int) -> int:
        """The layers that stay on the device when all hold `tokens` tokens (LBS Eq. 1, less the buffers)."""
        memory = self.memory
        budget, sizes = memory.device.budget_bytes, [tokens * n for n in memory.layer_bytes_per_token]
        if budget is None or sum(sizes) <= budget:
            return len(sizes)
        for layers in range(len(sizes) - 1, -1, -1):
            buffers = 2 if self.prefetch and layers < len(sizes) - 1 else 1
            if sum(sizes[:layers]) + buffers * max(sizes[layers:]) <= budget:
                return layers
        memory.device.require(max(sizes), beside_bytes=0)
        return 0  # one buffer fits, two do not

    def _live_tokens(self) -> int:
        return sum(kv.tokens for kv in self.memory.live if kv.rows is None)

    def _settle(self, tokens: int) -> int:
        """Bring all KV to the layers that are resident when the tree holds `tokens` tokens; returns how many."""
        memory, self._layers = self.memory, self.layers_in_device(tokens)
        for kv in memory.live:
            memory.evict(kv, "evict", range(self._layers, len(memory.shapes)))
        for kv in memory.live:
            memory.fetch(kv, "resident", range(self._layers))
            memory.settle(kv)
        return self._layers
