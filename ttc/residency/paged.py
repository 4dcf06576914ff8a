"""HELM: pages leave the device, those first that were used longest ago, and are streamed back."""

from __future__ import annotations

from dataclasses import dataclass

from ttc.checks import Share
from ttc.memory.storage import Storage
from ttc.residency.offloading import Offloading
from ttc.tree.segment import Segment


@dataclass
class Paged(Offloading):
    """Pages of `block_tokens` tokens; those used longest ago leave first, and attention streams
    them back (HELM section 4.2.2, Algorithm 3).

    watermark: the fullness of the device at which the pages that were used longest ago are written
        to the host. They leave when their room is needed, so that new KV finds it without waiting.

    Use it where: one context is long.
    """

    watermark: Share = 0.8

    def begin(self, after: Segment, room: int, one_each: bool) -> Storage:
        storage = super().begin(after, room, one_each)
        self.write_ahead(int((1 - self.watermark) * (self.memory.device.budget_bytes or 0)))
        return storage
