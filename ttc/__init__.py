"""A branch-aware KV engine for test-time compute: branches of one model over one tree of keys and values."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

if TYPE_CHECKING:
    from ttc.approximate.decode_gate import DecodeGate
    from ttc.approximate.early_exit import EarlyExit, ExitReport
    from ttc.engine import Engine
    from ttc.errors import (
        BudgetExceeded,
        ContextExceeded,
        InvalidInput,
        OutOfMemory,
        RemoteError,
        TTCError,
        UnsupportedModel,
        VerifierError,
    )
    from ttc.placement.auto import Auto
    from ttc.placement.split import Split
    from ttc.placement.streamed import Streamed
    from ttc.protocols import (
        Append,
        Backend,
        Expand,
        Forgets,
        Limited,
        Priced,
        Rate,
        Release,
        ScoresWithin,
        SideBranches,
        Step,
        Vary,
        Verifier,
    )
    from ttc.remote.backend import RemoteBackend
    from ttc.remote.endpoint import Endpoint
    from ttc.residency.beam_groups import BeamGroups
    from ttc.residency.capture import Capture
    from ttc.residency.headwise import Headwise
    from ttc.residency.layerwise import Layerwise
    from ttc.residency.paged import Paged
    from ttc.residency.resident import Resident
    from ttc.results import BranchRecord, Node, Problem, Progress, Result
    from ttc.sampling import Sampling
    from ttc.text.thoughts import ThinkingMarks
    from ttc.tree.branch import Branch, Substitution
    from ttc.tree.eviction import BlockCache
    from ttc.tree.sharing import Sharing
    from ttc.usage import Usage

__version__ = "0.1.0"

__all__ = [
    "Append",
    "Auto",
    "Backend",
    "BeamGroups",
    "BlockCache",
    "Branch",
    "BranchRecord",
    "BudgetExceeded",
    "Capture",
    "ContextExceeded",
    "DecodeGate",
    "EarlyExit",
    "Endpoint",
    "Engine",
    "ExitReport",
    "Expand",
    "Forgets",
    "Headwise",
    "InvalidInput",
    "Layerwise",
    "Limited",
    "Node",
    "OutOfMemory",
    "Paged",
    "Priced",
    "Problem",
    "Progress",
    "Rate",
    "Release",
    "RemoteBackend",
    "RemoteError",
    "Resident",
    "Result",
    "Sampling",
    "ScoresWithin",
    "Sharing",
    "SideBranches",
    "Split",
    "Step",
    "Streamed",
    "Substitution",
    "TTCError",
    "ThinkingMarks",
    "UnsupportedModel",
    "Usage",
    "Vary",
    "Verifier",
    "VerifierError",
    "__version__",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Append": "ttc.protocols",
        "Auto": "ttc.placement.auto",
        "Backend": "ttc.protocols",
        "BeamGroups": "ttc.residency.beam_groups",
        "BlockCache": "ttc.tree.eviction",
        "Branch": "ttc.tree.branch",
        "BranchRecord": "ttc.results",
        "BudgetExceeded": "ttc.errors",
        "Capture": "ttc.residency.capture",
        "ContextExceeded": "ttc.errors",
        "DecodeGate": "ttc.approximate.decode_gate",
        "EarlyExit": "ttc.approximate.early_exit",
        "Endpoint": "ttc.remote.endpoint",
        "Engine": "ttc.engine",
        "ExitReport": "ttc.approximate.early_exit",
        "Expand": "ttc.protocols",
        "Forgets": "ttc.protocols",
        "Headwise": "ttc.residency.headwise",
        "InvalidInput": "ttc.errors",
        "Layerwise": "ttc.residency.layerwise",
        "Limited": "ttc.protocols",
        "Node": "ttc.results",
        "OutOfMemory": "ttc.errors",
        "Paged": "ttc.residency.paged",
        "Priced": "ttc.protocols",
        "Problem": "ttc.results",
        "Progress": "ttc.results",
        "Rate": "ttc.protocols",
        "Release": "ttc.protocols",
        "RemoteBackend": "ttc.remote.backend",
        "RemoteError": "ttc.errors",
        "Resident": "ttc.residency.resident",
        "Result": "ttc.results",
        "Sampling": "ttc.sampling",
        "ScoresWithin": "ttc.protocols",
        "Sharing": "ttc.tree.sharing",
        "SideBranches": "ttc.protocols",
        "Split": "ttc.placement.split",
        "Step": "ttc.protocols",
        "Streamed": "ttc.placement.streamed",
        "Substitution": "ttc.tree.branch",
        "TTCError": "ttc.errors",
        "ThinkingMarks": "ttc.text.thoughts",
        "UnsupportedModel": "ttc.errors",
        "Usage": "ttc.usage",
        "Vary": "ttc.protocols",
        "Verifier": "ttc.protocols",
        "VerifierError": "ttc.errors",
    },
)
