"""What drafts have in common: who is asked, for how many tokens, and whether that pays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

from ttc.branch import Branch
from ttc.checks import Options, PositiveInt
from ttc.engine import Engine
from ttc.passes.runtime import Runtime
from ttc.sampling import Sampling
from ttc.speculation.checks import DraftChecks, why_not

ROW_COST = 0.12
"""What one more row costs, as a share of a pass of one row: `python -m experiments.bench
speculative` measures it."""

CHECK_COST = 0.2
"""What a pass costs more that checks drafts, besides its rows: its plan is good for one pass, and
its layers run one by one."""

FIRST_RATE = 0.6
"""The share of drafted tokens that is expected to be accepted before any was checked."""

MEMORY = 0.95
"""What the expected share keeps of itself for each drafted token that was checked."""

FORGETTING = 0.99
"""The same when a pass went by without a draft: the expectation returns to `FIRST_RATE`, so that
drafting is tried again."""


@dataclass
class Draft(Options, ABC):
    """Guesses the next tokens of branches while few rows decode.

    A drafted token is kept only if it is the very token that the branch draws there, from the
    model's logits and the branch's own random number. So no token depends on a draft.

    As configured it holds nothing: an engine works with a copy (`for_model`).
    max_tokens: the most tokens that are drafted for a branch at a time. Fewer are, down to none,
        where too few of them were accepted lately.
    max_rows: nothing is drafted where more branches decode at once.
    rate: the share of drafted tokens that is expected to be accepted.
    reason: why the engine does not speculate, "" where it does.
    """

    setting_of: ClassVar[str] = "speculation."

    max_tokens: PositiveInt = 8
    max_rows: PositiveInt = 1

    rate: float = field(init=False, repr=False, compare=False, default=FIRST_RATE)
    reason: str = field(init=False, repr=False, compare=False, default="")

    def for_engine(self, engine: Engine) -> Self:
        """A copy that drafts for an engine, or says why it cannot (`reason`)."""
        if reason := why_not(engine.runner, engine.residency, engine.gate):
            unused = replace(self)
            unused.reason = reason
            return unused
        load = partial(Engine.from_pretrained, device=engine.device, dtype=engine.dtype)
        return self.for_model(engine, load)

    def checks(self, runtime: Runtime) -> DraftChecks | None:
        """What a batch checks drafts with, None where nothing is drafted."""
        return None if self.reason else DraftChecks(runtime, self)

    def for_model(self, engine: Any, load: Callable[[str], Any]) -> Self:
        """A copy that drafts for an engine. load: gives an engine for another model's name."""
        return replace(self)

    @property
    def pass_cost(self) -> float:
        """What a pass of a model that drafts costs, as a share of a pass of one row."""
        return 0.0

    @abstractmethod
    def propose(
        self, branches: Sequence[Branch], counts: Sequence[int], samplings: Sequence[Sampling]
    ) -> list[list[int]]:
        """For each branch at most so many tokens that are likely to come next, or none."""

    def released(self, branches: Iterable[Branch]) -> None:
        """These branches were released."""
        return

    # ---------------------------------------------------------------- how many tokens

    def length(self, rows: int) -> int:
        """How many tokens to draft for each of so many rows.

        As many as give the most tokens of a row in the same time: the token numbered n of a draft
        is accepted with probability rate**n.
        """
        if rows > self.max_rows:
            return 0
        tokens = chance = 1.0
        best = 0
        best_rate = tokens / (1 + ROW_COST * (rows - 1))
        for count in range(1, self.max_tokens + 1):
            chance *= self.rate
            tokens += chance
            checking = 1 + CHECK_COST + ROW_COST * (rows * (1 + count) - 1)
            drafting = self.pass_cost * (1 + count)  # a draft model first reads the last token
            if tokens / (checking + drafting) > best_rate:
                best = count
                best_rate = tokens / (checking + drafting)
        return best

    def note(self, checked: int, accepted: int) -> None:
        """So many drafted tokens were compared with what a branch drew, and so many were equal."""
        kept = MEMORY**checked
        self.rate = kept * self.rate + (1 - kept) * accepted / checked

    def note_none(self) -> None:
        self.rate = FORGETTING * self.rate + (1 - FORGETTING) * FIRST_RATE
