"""HELM: pages leave the device, those first that were used longest ago, and are streamed back."""

from __future__ import annotations

from dataclasses import dataclass

from ttc.residency.offloading import Offloading


@dataclass
class Paged(Offloading):
    """Pages of `block_tokens` tokens (HELM section 4.2.2, Algorithm 3): context is bounded by host
    memory."""
