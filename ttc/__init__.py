"""A branch-aware KV engine for test-time compute: branches of one model over one tree of keys and values."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BeamGroups": "ttc.residency.beam_groups",
        "BlockCache": "ttc.tree.eviction",
        "Branch": "ttc.tree.branch",
        "BudgetExceeded": "ttc.errors",
        "DecodeGate": "ttc.approximate.decode_gate",
        "EarlyExit": "ttc.approximate.early_exit",
        "Engine": "ttc.engine",
        "ExitReport": "ttc.approximate.early_exit",
        "Headwise": "ttc.residency.headwise",
        "InvalidInput": "ttc.errors",
        "Layerwise": "ttc.residency.layerwise",
        "OutOfMemory": "ttc.errors",
        "Paged": "ttc.residency.paged",
        "Problem": "ttc.protocols",
        "Resident": "ttc.residency.resident",
        "Result": "ttc.protocols",
        "Sampling": "ttc.sampling",
        "Sharing": "ttc.tree.sharing",
        "Step": "ttc.protocols",
        "Substitution": "ttc.tree.branch",
        "TTCError": "ttc.errors",
        "UnsupportedModel": "ttc.errors",
        "Usage": "ttc.usage",
        "VerifierError": "ttc.errors",
    },
)
