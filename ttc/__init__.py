"""A branch-aware KV engine for test-time compute: branches of one model over one tree of keys and values."""

from ttc.block_cache import BlockCache
from ttc.branch import Branch, Substitution
from ttc.decode_gate import DecodeGate
from ttc.early_exit import EarlyExit, ExitReport
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
from ttc.residency import BeamGroups, Headwise, Layerwise, Paged, Resident
from ttc.sampling import Sampling
from ttc.sharing import Sharing
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
