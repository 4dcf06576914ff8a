"""Residency policies: what of the tree is in which tier, and when it moves. All of them are exact."""

from ttc.residency.base import Offloading, Residency
from ttc.residency.beam_groups import BeamGroups
from ttc.residency.headwise import Headwise
from ttc.residency.layerwise import Layerwise
from ttc.residency.paged import Paged
from ttc.residency.resident import Resident

__all__ = ["BeamGroups", "Headwise", "Layerwise", "Offloading", "Paged", "Residency", "Resident"]
