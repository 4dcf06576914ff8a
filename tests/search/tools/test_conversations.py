"""Tools in a conversation."""

from __future__ import annotations

from search import solve
from tests.search.test_conversations import SHORT, WITH_SYSTEM, engine
from ttc import Tools


def test_tools_are_told_of_in_a_conversation() -> None:
    def times(a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: one.
            b: the other.
        """
        return a * b

    result = solve(SHORT, problem=WITH_SYSTEM, engine=engine(context=4096), tools=Tools([times]))
    head, _, rest = str(result.prompt).partition("<eos>")
    assert "Be brief." in head and "Multiply two numbers." in head and "And 2 more?" in rest
