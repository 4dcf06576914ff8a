"""Verifiers: what rates branches."""

from verifiers.arithmetic import ArithmeticVerifier
from verifiers.confidence import ConfidenceVerifier
from verifiers.confidence_gated import ConfidenceGatedVerifier
from verifiers.self_verifier import SelfVerifier

__all__ = ["ArithmeticVerifier", "ConfidenceGatedVerifier", "ConfidenceVerifier", "SelfVerifier"]
