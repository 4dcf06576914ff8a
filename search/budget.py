"""What one problem may cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ttc.checks import check_fields
from ttc.errors import InvalidInput

LIMITS = ("max_tokens", "max_generated_tokens", "max_calls", "max_tool_calls", "max_wall_s")
"""The fields of a budget that each end a search by themselves."""


@dataclass(frozen=True)
class Budget:
    """What one problem may cost, None for no limit (`search.solve` says more of each).

    max_tokens: generated plus verifier tokens. max_generated_tokens, max_calls: generated tokens
    alone, and expansions.
    max_tool_calls: calls of tools, after which nothing is expanded.
    max_wall_s: seconds from the start of the search, after which it ends, in the middle of a step
        too.
    reserve: the last of these tokens, and the last call, which are kept for the final answer.
    final_text: what is put after an unfinished branch to ask for its answer.
    """

    max_tokens: int | None = None
    max_generated_tokens: int | None = None
    max_calls: int | None = None
    max_tool_calls: int | None = None
    max_wall_s: float | None = None
    reserve: int = 0
    final_text: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("max_tokens", "max_generated_tokens", "max_calls", "max_tool_calls"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidInput(f"{name}={value} must be at least 1")
        if self.max_wall_s is not None and not self.max_wall_s > 0:
            raise InvalidInput(f"max_wall_s={self.max_wall_s} must be more than 0")
        if self.reserve < 0:
            raise InvalidInput(f"reserve={self.reserve} must be 0 or more")
        if self.reserve and not any((self.max_tokens, self.max_generated_tokens, self.max_calls)):
            raise InvalidInput(
                f"reserve={self.reserve} is a part of a budget; give max_tokens or max_calls too"
            )
        for name in ("max_tokens", "max_generated_tokens"):
            if (value := getattr(self, name)) is not None and self.reserve >= value:
                raise InvalidInput(
                    f"reserve={self.reserve} leaves nothing of {name}={value} to search with; give "
                    "less"
                )
        if self.final_text and not self.reserve:
            raise InvalidInput(
                "final_text asks for an answer with the reserve; give reserve=N tokens too"
            )

    @property
    def limits(self) -> dict[str, int | float]:
        return {
            name: value
            for name, value in asdict(self).items()
            if name in LIMITS and value is not None
        }


UNLIMITED = Budget()
