"""A draft model: a smaller model of the same vocabulary writes a few tokens ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any, Self
from weakref import WeakKeyDictionary

from ttc.branch import Branch
from ttc.checks import NonNegativeFloat, check_kind
from ttc.errors import InvalidInput, TTCError
from ttc.model.stored import Stored
from ttc.sampling import Sampling
from ttc.speculation.base import Draft

NO_MODEL = "???"


@dataclass
class DraftModel(Draft):
    """Drafts what another model writes, whose KV follows the branches.

    The draft draws with the branch's own random numbers, so that the two models often draw the same
    token where their probabilities are near (Daliri et al., "Coupling without communication and
    drafter-invariant speculative decoding", 2024). Where the other model cannot write, as beyond
    its context, nothing is drafted.

    model: an alias, folder or hub id, which is loaded with the engine; or an `Engine` of its own.
    cost: what a pass of the other model costs, as a share of a pass of one row; None for the share
        of its weights' numbers in the larger model's.
    """

    model: Any = NO_MODEL
    cost: NonNegativeFloat | None = None

    _drafts: WeakKeyDictionary[Branch, Branch] = field(
        init=False, repr=False, compare=False, default_factory=WeakKeyDictionary
    )
    _vocabulary: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        by_name = isinstance(self.model, str) and self.model != NO_MODEL
        fits = by_name or callable(getattr(self.model, "generate", None))
        check_kind("speculation.model", self.model, fits, "a model's name, or an engine of its own")

    def for_model(self, engine: Any, load: Callable[[str], Any]) -> Self:
        other = load(self.model) if isinstance(self.model, str) else self.model
        if other is engine:
            raise InvalidInput("speculation.model is the engine itself; give an engine of its own")
        if _vocabulary(other) != _vocabulary(engine):
            raise InvalidInput(
                f"speculation.model={self.model} has another vocabulary than the model it drafts "
                "for; give a model of the same family, whose tokenizer is the same"
            )
        share = _weights(other) / _weights(engine)
        bound = replace(self, model=other, cost=share if self.cost is None else self.cost)
        bound._vocabulary = engine.limits.vocab_size
        return bound

    @property
    def pass_cost(self) -> float:
        return self.cost or 0.0

    def propose(
        self, branches: Sequence[Branch], counts: Sequence[int], samplings: Sequence[Sampling]
    ) -> list[list[int]]:
        self._let_go()
        places = [place for place, count in enumerate(counts) if count]
        try:
            texts = [branches[place].tokens for place in places]
            for place, draft in zip(places, self.model.roots(texts).result(), strict=True):
                draft.key = branches[place].key
                self._replace(branches[place], draft)
            for sampling in dict.fromkeys(samplings[place] for place in places):
                alike = [place for place in places if samplings[place] == sampling]
                drafts = [self._drafts[branches[place]] for place in alike]
                limits = [counts[place] for place in alike]
                self.model.generate(drafts, limits, sampling=sampling)
        except TTCError:
            return [[] for _ in branches]
        return [
            list(takewhile(self._in_vocabulary, self._drafts[branch].generated)) if count else []
            for branch, count in zip(branches, counts, strict=True)
        ]

    def released(self, branches: Iterable[Branch]) -> None:
        self._let_go()

    def _in_vocabulary(self, token: int) -> bool:
        return token < self._vocabulary

    def _replace(self, branch: Branch, draft: Branch) -> None:
        before = self._drafts.get(branch)
        self._drafts[branch] = draft
        if before is not None:
            self.model.release([before])

    def _let_go(self) -> None:
        """Release the drafts that no branch goes on from."""
        for branch in list(self._drafts):
            heirs = chain([branch], branch.children)
            if all(heir.released for heir in heirs):
                self.model.release([self._drafts.pop(branch)])


def _vocabulary(engine: Any) -> Any:
    tokenizer = engine.tokenizer
    return tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else engine.limits.vocab_size


def _weights(engine: Any) -> int:
    stored: int = sum(m.numbers for m in engine.model.modules() if isinstance(m, Stored))
    plain: int = sum(weight.numel() for weight in engine.model.parameters())
    return stored + plain
