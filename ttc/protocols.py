"""The seams: what a search asks for, what a backend and a verifier must offer, what comes back.

A search is a generator that yields `Vary`, `Expand`, `Rate` and `Release` and returns its chosen branches; it owns no
model and no batching. A driver (`search.solve`) merges the requests of many searches and sends them to a
`Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from ttc.sampling import SAMPLED, Sampling
from ttc.tree.branch import Branch
from ttc.usage import Usage

Aggregation = Literal["min", "product", "last", "mean"]
Purpose = Literal["prompt", "verifier", "recompute"]


@dataclass(frozen=True)
class Problem:
    """One question. `answer` is the gold answer where one is known; no search or verifier reads it."""

    question: str
    id: str = ""
    answer: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One unit of expansion: at most `max_tokens` tokens, or up to and including `delimiter`.

    A string in `end` finishes the branch, as the model's end-of-sequence token does.
    """

    max_tokens: int
    delimiter: str | None = None
    end: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vary:
    """Start `n` branches of the root's problem from prompts of their own. Answer: the branches.

    phrasings: instructions, `{question}` in them; branch i asks by the i-th, then from the first again; none for the
    template's own. hints: likewise, words that the answer is made to start with. Both are part of the prompt.
    """

    root: Branch
    n: int
    phrasings: Sequence[str] = ()
    hints: Sequence[str] = ()


@dataclass(frozen=True)
class Expand:
    """Fork each branch `n` times and let every child generate one step. Answer: children, `n` per branch in order."""

    branches: Sequence[Branch]
    n: int
    step: Step
    sampling: Sampling = SAMPLED


@dataclass(frozen=True)
class Rate:
    """Rate branches with the verifier. Answer: one float per branch, also left in `branch.score`."""

    branches: Sequence[Branch]
    aggregation: Aggregation = "last"


@dataclass(frozen=True)
class Release:
    """Branches that are no longer needed. Their KV is freed at once. Answer: None."""

    branches: Sequence[Branch]


@runtime_checkable
class Backend(Protocol):
    """Where branches live. `ttc.Engine` is one."""

    tokenizer: Any

    def root(self, tokens: Sequence[int], *, seed: int = 0) -> Branch: ...

    def roots(self, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None = None) -> list[Branch]: ...

    def variants(
        self, root: Branch, prompts: Sequence[Sequence[int]], suffixes: Sequence[Sequence[int]] | None = None
    ) -> list[Branch]: ...

    def fork(self, branch: Branch, n: int) -> list[Branch]: ...

    def extend(
        self, branches: Sequence[Branch], tokens_per_branch: Sequence[Sequence[int]], *, purpose: Purpose = "prompt"
    ) -> None: ...

    def generate(
        self,
        branches: Sequence[Branch],
        max_tokens: int | Sequence[int],
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling = SAMPLED,
    ) -> None: ...

    def score(
        self, branches: Sequence[Branch], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[list[float]]]: ...

    def release(self, branches: Sequence[Branch]) -> None: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class Verifier(Protocol):
    """Rates branches. Process verifiers return one score per step, outcome verifiers a list of one.

    `questions[i]` belongs to `branches[i]`. Scores are finite and higher is better; they need not lie in [0, 1].
    Model-based verifiers work through `backend`, on the branch's own KV, and leave the branches as they were.
    """

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Sequence[Sequence[float]]: ...


@dataclass
class Result:
    """The outcome of one search on one problem.

    branches: the finished candidates, best first; their KV is released, their text and scores stay.
    tree: every node that was ever expanded, pruned ones too: `{"id", "parent", "path", "text", "tokens",
    "score", "step_scores", "status"}` in order of creation, status one of root,
    expanded, pruned, kept, finished.
    error: why the search stopped early, or None.
    """

    problem: Problem
    best: Branch | None
    branches: list[Branch]
    answer: str | None
    usage: Usage
    tree: list[dict[str, Any]]
    seed: int = 0
    error: str | None = None


Extract = Callable[[str], str | None]
