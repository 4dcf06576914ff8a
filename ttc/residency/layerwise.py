"""The baseline of the papers: whole layers move, once for every token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ttc.attention.entry import Entry, Reads, private_entries
from ttc.attention.stream import FetchUnit
from ttc.memory.kv import KV
from ttc.memory.tiers import Block
from ttc.residency.base import Paths
from ttc.residency.beam_scheduling import balanced_rounds
from ttc.residency.offloading import Offloading


@dataclass
class Layerwise(Offloading):
    """All branches advance together, as many whole layers resident as fit (LBS Eq. 1), the others
    fetched as each is computed and, with `prefetch`, while the one before it is: two layers of the
    budget are buffers then.

    shared: KV that branches share moves once; off, each branch's copy moves and is charged, as in
        LBS's baseline.
    """

    shared: bool = True

    _layers = 0
    _charged = 0
    _buffers = 0
    """Bytes that a step's streams need, also between two of them."""
    _running = 0
    """Bytes of the recurrent states that the step or pass under way changes."""

    # ---------------------------------------------------------------- where KV goes

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        layers = self._place(max(self._live_tokens() + tokens, self._charged))
        return self.memory.allocate(tokens, device_layers=layers)

    def allocate_frozen(self, tokens: int, path: Sequence[KV] = ()) -> KV:
        """In the resident layers as far as tails and buffers leave room; the next step brings the
        rest."""
        sizes = self.memory.layer_bytes_per_token
        layers = self._layers
        while layers and not self.make_room(tokens * sum(sizes[:layers]) + self._buffers):
            layers -= 1
        return self.memory.allocate(tokens, device_layers=layers)

    def state_on_device(self) -> bool:
        return self.device.free_bytes - self._buffers >= self.state_bytes

    def eviction_order(self) -> list[Block]:
        return list(self.memory.states.live)

    def _place(self, tokens: int) -> int:
        """Bring all KV to the layers that are resident when the tree holds `tokens` tokens; returns
        how many."""
        memory = self.memory
        self._layers, self._buffers = self.layers_in_device(tokens)
        for kv in memory.live:
            memory.evict(kv, "evict", range(self._layers, len(memory.shapes)))
        resident_bytes = tokens * sum(memory.layer_bytes_per_token[: self._layers])
        there_bytes = sum(memory.tier_bytes(kv)[0] for kv in memory.live)
        needed = resident_bytes + self._buffers + self._running - there_bytes
        if not self.make_room(needed):
            self.crowd_out(needed)
        for kv in memory.live:
            memory.fetch(kv, "resident", range(self._layers))
            memory.wait_kv(kv)
        return self._layers

    def layers_in_device(self, tokens: int) -> tuple[int, int]:
        """The layers that stay on the device when all hold `tokens` tokens (LBS Eq. 1, less the
        buffers), and the bytes of the buffers."""
        device = self.device
        sizes = [tokens * n for n in self.memory.layer_bytes_per_token]
        if device.budget_bytes is None or sum(sizes) + self._running <= device.budget_bytes:
            return len(sizes), 0
        room = device.budget_bytes - self._running
        for layers in range(len(sizes) - 1, -1, -1):
            buffers = (2 if self.prefetch and layers < len(sizes) - 1 else 1) * max(sizes[layers:])
            if sum(sizes[:layers]) + buffers <= room:
                return layers, buffers
        device.require(max(sizes, default=0), used_bytes=self._running)
        return 0, max(sizes, default=0)  # one buffer fits, two do not

    def _live_tokens(self) -> int:
        return sum(kv.tokens for kv in self.memory.live if kv.rows is None)

    # ---------------------------------------------------------------- what there is room for

    def require(self, tokens: int, ends: int = 0, running: int = 0) -> None:
        self.read_capacity()
        self._running = running * self.state_bytes
        self.device.require(self._running, used_bytes=0)
        layers, _ = self.layers_in_device(max(self._live_tokens() + tokens, self._charged))
        self._require_layers(layers, tokens * sum(self.memory.layer_bytes_per_token[layers:]), ends)

    def _require_layers(self, layers: int, nbytes: int, ends: int) -> None:
        """Raise OutOfMemory unless the host has room for `nbytes`, the layers from `layers` on, and
        under a budget for all states and those of so many ends."""
        memory = self.memory
        if memory.device.budget_bytes is not None:
            on_device = sum(memory.tier_bytes(state)[0] for state in memory.states.live)
            nbytes += on_device + ends * memory.states.nbytes
        leaving = sum(
            memory.piece_bytes(kv, layer)
            for kv in memory.live
            for layer in range(layers, len(memory.shapes))
            if kv.device[layer] is not None
        )
        self._require_on_host(leaving + nbytes)

    # ---------------------------------------------------------------- a step

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        """All at once, or in as few rounds as their recurrent states take. The host must have room
        for the layers that leave, for tails and what they freeze into, and for states."""
        self.read_capacity()
        memory = self.memory
        new = capacity * len(paths)
        tokens = self._charged_tokens(paths, capacity)
        rounds = self._rounds(len(paths), tokens)
        self._running = max(map(len, rounds)) * memory.states.nbytes
        layers, buffers = self.layers_in_device(tokens)
        inside = sum(memory.layer_bytes_per_token[:layers])
        outside = memory.bytes_per_token - inside
        room = self._live_tokens() * inside + 2 * new * inside + buffers + self._running
        frozen_inside = memory.device.budget_bytes is None or room <= memory.device.budget_bytes
        frozen_bytes = new * (outside + (outside if frozen_inside else memory.bytes_per_token))
        self._require_layers(layers, frozen_bytes, len(paths))
        return rounds

    def _rounds(self, branches: int, tokens: int) -> list[list[int]]:
        """All together, if their states fit with a buffer, else as many as do."""
        device, size = self.device, self.state_bytes
        if device.budget_bytes is None or not size:
            return [list(range(branches))]
        buffer_bytes = tokens * max(self.memory.layer_bytes_per_token, default=0)
        max_branches = (device.budget_bytes - buffer_bytes) // size
        if max_branches < 1:
            device.require(size + buffer_bytes, used_bytes=0)
        return balanced_rounds(branches, max_branches)

    def _charged_tokens(self, paths: Paths, capacity: int) -> int:
        """The tokens that a step charges a layer with: all there are, as whole layers move."""
        private = (
            0 if self.shared else sum(len(segment.tokens) for path in paths for segment in path)
        )
        return max(private, self._live_tokens()) + capacity * len(paths)

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        self._running = len(paths) * self.state_bytes
        tokens = self._charged_tokens(paths, capacity)
        self._charged = 0 if self.shared else tokens
        return self.memory.allocate(capacity, rows=len(paths), device_layers=self._place(tokens))

    def entries(self, paths: Paths) -> list[Entry]:
        return super().entries(paths) if self.shared else private_entries(paths, [1] * len(paths))

    # ---------------------------------------------------------------- a pass

    def units(self, layer: int, reads: Reads, missing: Sequence[int]) -> list[FetchUnit]:
        return [FetchUnit(layer, slice(None), tuple(missing))] if missing else []

    def all_units(self, reads: Reads, with_views: bool = True) -> list[FetchUnit]:
        """Also the tails of the layers that are not resident."""
        by_layer = {unit.layer: unit for unit in super().all_units(reads, with_views)}
        for layer, copy in enumerate(reads.tails.kv.device if reads.tails is not None else ()):
            if copy is None:
                unit = by_layer.get(layer, FetchUnit(layer, slice(None), ()))
                by_layer[layer] = replace(unit, tails=True)
        return [by_layer[layer] for layer in sorted(by_layer)]
