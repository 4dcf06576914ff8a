"""Verifiers: what rates branches."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

if TYPE_CHECKING:
    from verifiers.arithmetic import ArithmeticVerifier
    from verifiers.confidence import ConfidenceVerifier
    from verifiers.confidence_gated import ConfidenceGatedVerifier
    from verifiers.ensemble import EnsembleVerifier
    from verifiers.llm_judge import LLMJudge
    from verifiers.math_shepherd import MathShepherd
    from verifiers.outcome_reward import OutcomeReward
    from verifiers.qwen_prm import QwenPRM
    from verifiers.rlhflow_prm import RLHFlowPRM
    from verifiers.self_verifier import SelfVerifier
    from verifiers.skywork_prm import SkyworkPRM
    from verifiers.think_prm import ThinkPRM
    from verifiers.value_head import ValueHead

__all__ = [
    "ArithmeticVerifier",
    "ConfidenceGatedVerifier",
    "ConfidenceVerifier",
    "EnsembleVerifier",
    "LLMJudge",
    "MathShepherd",
    "OutcomeReward",
    "QwenPRM",
    "RLHFlowPRM",
    "SelfVerifier",
    "SkyworkPRM",
    "ThinkPRM",
    "ValueHead",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ArithmeticVerifier": "verifiers.arithmetic",
        "ConfidenceGatedVerifier": "verifiers.confidence_gated",
        "ConfidenceVerifier": "verifiers.confidence",
        "EnsembleVerifier": "verifiers.ensemble",
        "LLMJudge": "verifiers.llm_judge",
        "MathShepherd": "verifiers.math_shepherd",
        "OutcomeReward": "verifiers.outcome_reward",
        "QwenPRM": "verifiers.qwen_prm",
        "RLHFlowPRM": "verifiers.rlhflow_prm",
        "SelfVerifier": "verifiers.self_verifier",
        "SkyworkPRM": "verifiers.skywork_prm",
        "ThinkPRM": "verifiers.think_prm",
        "ValueHead": "verifiers.value_head",
    },
)
