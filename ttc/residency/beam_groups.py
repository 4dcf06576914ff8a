"""LBS: branches decode in groups whose KV is on the device for a whole step."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, cast

from ttc.residency.beam_scheduling import schedule_beams
from ttc.residency.base import Paths
from ttc.residency.offloading import Offloading


@dataclass
class BeamGroups(Offloading):
    """Algorithm 1's groups, filled by bytes, each storage counted once (LBS section 4)."""

    block_tokens: int = 128

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        memory = self.memory
        beams = [list(dict.fromkeys(segment.storage for segment in path)) for path in paths]
        budget = memory.device.budget_bytes
        return schedule_beams(
            cast("Any", beams),
            lambda storage: sum(memory.piece_bytes(storage, layer) for layer in memory.layers),
            tokens * memory.bytes_per_token,
            inf if budget is None else budget,
            lambda storage: None not in storage.device,
        )

    def enter(self, paths: Paths) -> None:
        """What others need leaves as far as the group needs the room."""
        needed = dict.fromkeys(segment.storage for path in paths for segment in path)
        memory = self.memory
        memory.used(needed)
        self.writing.update(needed)
        try:
            for storage in needed:
                self.make_room(memory.missing_bytes(storage, memory.layers))
                memory.fetch(storage, "group")
        finally:
            self.writing.difference_update(needed)
