"""The verifier of a run that names none: one that can rate its kind of answer."""

from __future__ import annotations

DEFAULT = "confidence"
"""As measured (docs/verifiers.md, "The default")."""
BY_KIND = {**dict.fromkeys(("number", "strict", "math"), "arithmetic"), "code": "execution"}


def default_verifier(kind: str) -> str:
    """The choice that `verifier=auto` is for a kind of answer (`dataset.answer_kind`)."""
    return BY_KIND.get(kind, DEFAULT)
