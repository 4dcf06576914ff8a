"""Verifiers: what rates branches."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

if TYPE_CHECKING:
    from verifiers.arithmetic import ArithmeticVerifier as ArithmeticVerifier
    from verifiers.confidence_gated import ConfidenceGatedVerifier as ConfidenceGatedVerifier
    from verifiers.confidence_verifier import ConfidenceVerifier as ConfidenceVerifier
    from verifiers.ensemble import EnsembleVerifier as EnsembleVerifier
    from verifiers.llm_judge import LLMJudge as LLMJudge
    from verifiers.llm_verifier import LLMVerifier as LLMVerifier
    from verifiers.math_shepherd import MathShepherd as MathShepherd
    from verifiers.outcome_reward import OutcomeReward as OutcomeReward
    from verifiers.programs.codet import CodeT as CodeT
    from verifiers.programs.execution_verifier import ExecutionVerifier as ExecutionVerifier
    from verifiers.programs.gen_prm import GenPRM as GenPRM
    from verifiers.programs.mbr_exec import MBRExec as MBRExec
    from verifiers.programs.s_star import SStar as SStar
    from verifiers.qwen_prm import QwenPRM as QwenPRM
    from verifiers.rlhflow_prm import RLHFlowPRM as RLHFlowPRM
    from verifiers.self_verifier import SelfVerifier as SelfVerifier
    from verifiers.skywork_prm import SkyworkPRM as SkyworkPRM
    from verifiers.think_prm import ThinkPRM as ThinkPRM
    from verifiers.token_prm import TokenPRM as TokenPRM
    from verifiers.tournament import Tournament as Tournament
    from verifiers.value_head import ValueHead as ValueHead

__getattr__, __dir__, __all__ = lazy_names(__name__)
