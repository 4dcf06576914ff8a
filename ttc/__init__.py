"""A branch-aware KV engine for test-time compute: branches of one model over one tree of keys and
values."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

# ruff: noqa: I001 - one import of a module, however many names are exported again
if TYPE_CHECKING:
    from ttc.approximate.decode_gate import DecodeGate as DecodeGate
    from ttc.approximate.early_exit import EarlyExit as EarlyExit, ExitReport as ExitReport
    from ttc.approximate.quantized_kv import QuantizedKV as QuantizedKV
    from ttc.backend import Backend as Backend
    from ttc.engine import Engine as Engine
    from ttc.errors import (
        BudgetExceeded as BudgetExceeded,
        ContextExceeded as ContextExceeded,
        InvalidInput as InvalidInput,
        OutOfMemory as OutOfMemory,
        RemoteError as RemoteError,
        TTCError as TTCError,
        Unsupported as Unsupported,
        UnsupportedModel as UnsupportedModel,
        VerifierError as VerifierError,
    )
    from ttc.placement.auto import Auto as Auto
    from ttc.placement.split import Split as Split
    from ttc.placement.streamed import Streamed as Streamed
    from ttc.protocols import (
        Append as Append,
        Expand as Expand,
        Forgets as Forgets,
        Priced as Priced,
        Rate as Rate,
        Release as Release,
        Vary as Vary,
        Verifier as Verifier,
    )
    from ttc.remote.backend import RemoteBackend as RemoteBackend
    from ttc.remote.endpoint import Endpoint as Endpoint
    from ttc.residency.beam_groups import BeamGroups as BeamGroups
    from ttc.residency.capture import Capture as Capture
    from ttc.residency.headwise import Headwise as Headwise
    from ttc.residency.layerwise import Layerwise as Layerwise
    from ttc.residency.paged import Paged as Paged
    from ttc.residency.resident import Resident as Resident
    from ttc.results import (
        BranchRecord as BranchRecord,
        Node as Node,
        Problem as Problem,
        Progress as Progress,
        Result as Result,
    )
    from ttc.sampling import Sampling as Sampling
    from ttc.speculation.draft_model import DraftModel as DraftModel
    from ttc.speculation.prompt_lookup import PromptLookup as PromptLookup
    from ttc.step import Step as Step
    from ttc.task import Task as Task
    from ttc.text.thinking_marks import ThinkingMarks as ThinkingMarks
    from ttc.tools.base import Tool as Tool, ToolError as ToolError, Tools as Tools
    from ttc.tools.calculator import CalculatorTools as CalculatorTools
    from ttc.tools.mcp import McpTools as McpTools
    from ttc.tools.programs.python import PythonTools as PythonTools
    from ttc.branch import Branch as Branch
    from ttc.tree.branch import Substitution as Substitution
    from ttc.tree.eviction import BlockCache as BlockCache
    from ttc.tree.sharing import Sharing as Sharing
    from ttc.usage import Usage as Usage

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(__name__)
__all__.append("__version__")
