"""Verifiers: what rates branches."""

from verifiers.arithmetic import ArithmeticVerifier
from verifiers.confidence import ConfidenceVerifier
from verifiers.self_verifier import SelfVerifier

__all__ = ["ArithmeticVerifier", "ConfidenceVerifier", "SelfVerifier"]
