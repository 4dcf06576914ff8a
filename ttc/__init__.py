"""A branch-aware KV engine for test-time compute: branches of one model over one tree of keys and values."""

from ttc.branch import Branch
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
from ttc.sampling import Sampling
from ttc.usage import Usage

__all__ = [
    "Branch",
    "BudgetExceeded",
    "Engine",
    "InvalidInput",
    "OutOfMemory",
    "Problem",
    "Result",
    "Sampling",
    "Step",
    "TTCError",
    "UnsupportedModel",
    "Usage",
    "VerifierError",
]
