"""A backend whose texts, and a verifier whose scores, a test writes down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from search import Result
from tests.helpers.backends import FakeBackend
from ttc.branch import Branch
from ttc.sampling import random_key

Path = tuple[int, ...]
"""Of a branch: the child's index at each fork."""


class Scripted(FakeBackend):
    """Every step is what `script` says of its branch: the letters up to a delimiter, a 0 or the
    step's limit.

    The script may look at `limit`, the step's. logprob: of each letter, by the branch's text with
    the step in it.
    held: the paths of the branches that were live at each `generate`, those that it was to continue
    included.
    """

    def __init__(
        self,
        script: Callable[[Branch], str],
        logprob: Callable[[str], float] = lambda text: -1.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.script, self.logprob = script, logprob
        self.held: list[set[Path]] = []
        self.limit, self.says, self.after = 0, "", -1.0

    def generate(self, branches: Sequence[Branch], *args: Any, **options: Any) -> None:
        self.held.append({branch.path for branch in self.live.values()})
        super().generate(branches, *args, **options)

    def write_step(
        self, branch: Branch, limit: int, stop: Sequence[str], end: Sequence[str]
    ) -> None:
        self.limit = limit
        self.says = self.script(branch)
        self.after = self.logprob(branch.text + self.says)
        super().write_step(branch, limit, stop, end)

    def next_letter(self, branch: Branch, start: int) -> tuple[str, float]:
        return self.says[len(branch.tokens) - start], self.after


class Scores:
    """Rates a branch by a function of it, which gives a score or one for each step. gone: the
    branches that it was told are let go of."""

    def __init__(self, of: Callable[[Branch], Any]):
        self.of, self.gone = of, list[Branch]()

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        given = [self.of(branch) for branch in branches]
        return [scores if isinstance(scores, list) else [scores] for scores in given]

    def released(self, branches: Sequence[Branch]) -> None:
        self.gone += branches


class RandomValues:
    """A score for the name of each state, or for its path; as a set, a quarter of all states."""

    def __init__(self, seed: int):
        self.seed = seed

    def __getitem__(self, state: str | Path) -> float:
        return random_key(self.seed, state) % 90 / 100 + 0.1

    def get(self, state: str | Path, default: float) -> float:
        return self[state]

    def __contains__(self, state: str | Path) -> bool:
        name = state.replace("x", "") if isinstance(state, str) else state
        return len(state) > 0 and random_key(self.seed, "end", name) % 4 == 0


def continued(result: Result) -> list[Path]:
    """The branches that were continued, in order."""
    by_id = {node.id: tuple(node.path) for node in result.tree}
    return list(
        dict.fromkeys(by_id[node.parent] for node in result.tree if node.parent is not None)
    )
