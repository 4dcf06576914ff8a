"""A verifier that ends the process by sys.exit is a verifier that failed."""

from __future__ import annotations

import sys
from typing import Any

from search import BestOfN, solve
from tests.helpers.backends import FakeBackend


class Exits:
    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        sys.exit(0)


def test_a_verifier_that_exits_is_named() -> None:
    result = solve(BestOfN(n=2), problem="1 + 1", engine=FakeBackend(), verifier=Exits())
    assert result.error is not None
    assert result.error.startswith("VerifierError: Exits raised SystemExit: 0 (")
    assert "test_verifier_exits.py" in result.error
