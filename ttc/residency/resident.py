"""Everything on the device."""

from __future__ import annotations

from dataclasses import dataclass

from ttc.residency.base import Residency


@dataclass
class Resident(Residency):
    """All KV on the device; a budget too small is refused before any work, with the least bytes
    that it takes."""
