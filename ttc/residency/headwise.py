"""HeadInfer: all KV on the host, fetched by head groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ttc.memory import KV
from ttc.plan import Entry
from ttc.residency.base import Offloading, Paths
from ttc.stream import Unit


@dataclass
class Headwise(Offloading):
    """Head groups of one layer at a time through ping-pong buffers (HeadInfer section 2, Eq. 8; appendix D.1).

    The device holds two head groups of one layer, and the tails of the branches that decode.
    head_group: KV heads fetched together; None for as many as fit the budget twice (adaptive).
    """

    head_group: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("head_group")

    def allocate(self, tokens: int, needed: Iterable[KV] = ()) -> KV:
        return self.memory.allocate(tokens, device_layers=0)

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        return self.memory.allocate(capacity, rows=len(paths))

    def buffer_bytes(self, paths: Paths) -> int:
        """One head of a layer, or what `head_group` asks for, of all tokens."""
        tokens = sum(len(segment.tokens) for segment in {segment for path in paths for segment in path})
        layers = zip(self.memory.shapes, self.memory.layer_bytes_per_token, strict=True)
        return max(
            tokens * size // shape.kv_heads * min(self.head_group or 1, shape.kv_heads) for shape, size in layers
        )

    def units(self, layer: int, entries: Sequence[Entry], missing: Sequence[int]) -> list[Unit]:
        if not missing:
            return []
        heads = self.memory.shapes[layer].kv_heads
        size = self.group_size(layer, sum(entries[index].length for index in missing))
        return [Unit(layer, slice(head, min(head + size, heads)), tuple(missing)) for head in range(0, heads, size)]

    def group_size(self, layer: int, tokens: int) -> int:
        """KV heads of a group when `tokens` tokens are read."""
        heads = self.memory.shapes[layer].kv_heads
        if self.head_group is not None:
            return min(self.head_group, heads)
        head_bytes = tokens * self.memory.layer_bytes_per_token[layer] // heads
        return int(max(1, min(heads, self.memory.device.free_bytes // (2 * head_bytes))))
