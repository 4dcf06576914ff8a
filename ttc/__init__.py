"""A branch-aware KV engine for test-time compute: branches of one model over one tree of keys and values."""

from ttc.approximate.decode_gate import DecodeGate
from ttc.approximate.early_exit import EarlyExit, ExitReport
from ttc.engine import Engine
from ttc.errors import (
    BudgetExceeded,
    InvalidInput,
    OutOfMemory,
    TTCError,
    UnsupportedModel,
    VerifierError,
)
from ttc.protocols import Problem, Result, Step
from ttc.residency.beam_groups import BeamGroups
from ttc.residency.headwise import Headwise
from ttc.residency.layerwise import Layerwise
from ttc.residency.paged import Paged
from ttc.residency.resident import Resident
from ttc.sampling import Sampling
from ttc.tree.branch import Branch, Substitution
from ttc.tree.eviction import BlockCache
from ttc.tree.sharing import Sharing
from ttc.usage import Usage

__all__ = [
    "BeamGroups",
    "BlockCache",
    "Branch",
    "BudgetExceeded",
    "DecodeGate",
    "EarlyExit",
    "Engine",
    "ExitReport",
    "Headwise",
    "InvalidInput",
    "Layerwise",
    "OutOfMemory",
    "Paged",
    "Problem",
    "Resident",
    "Result",
    "Sampling",
    "Sharing",
    "Step",
    "Substitution",
    "TTCError",
    "UnsupportedModel",
    "Usage",
    "VerifierError",
]
