"""Verifiers: what rates branches."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

if TYPE_CHECKING:
    from verifiers.arithmetic import ArithmeticVerifier
    from verifiers.confidence import ConfidenceVerifier
    from verifiers.confidence_gated import ConfidenceGatedVerifier
    from verifiers.self_verifier import SelfVerifier

__all__ = ["ArithmeticVerifier", "ConfidenceGatedVerifier", "ConfidenceVerifier", "SelfVerifier"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ArithmeticVerifier": "verifiers.arithmetic",
        "ConfidenceGatedVerifier": "verifiers.confidence_gated",
        "ConfidenceVerifier": "verifiers.confidence",
        "SelfVerifier": "verifiers.self_verifier",
    },
)
