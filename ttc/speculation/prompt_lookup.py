"""Prompt lookup: what followed the same words before, in any branch of the problem."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ttc.branch import Branch
from ttc.checks import PositiveInt
from ttc.sampling import Sampling
from ttc.speculation.base import Draft

PROBLEMS = 64
"""Problems whose texts are remembered."""


class Lookup:
    """Where the runs of tokens of one problem's branches stood last.

    places: of each run of tokens, the text that it stands in and where it ends there.
    """

    def __init__(self, sizes: range):
        self.sizes = sizes
        self.places: dict[tuple[int, ...], tuple[list[int], int]] = {}
        self.read: WeakKeyDictionary[Branch, int] = WeakKeyDictionary()

    def follow(self, branch: Branch) -> None:
        tokens, parent = branch.tokens, branch.parent
        first = self.read.get(branch, -1)
        if first < 0:
            first = 0 if parent is None else self.read.get(parent, 0)
        first = min(first, len(tokens))
        for end in range(max(first, 1), len(tokens)):  # each run has a token that follows it
            for size in self.sizes:
                if size <= end:
                    self.places[tuple(tokens[end - size : end])] = tokens, end
        self.read[branch] = len(tokens)

    def next_tokens(self, tokens: list[int], count: int) -> list[int]:
        """What followed the longest run that `tokens` end with, where it stood last."""
        for size in reversed(self.sizes):
            place = self.places.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if place is None:
                continue
            text, end = place
            draft = text[end : end + count]
            while draft and text is tokens and len(draft) < count:  # the text repeats itself
                draft.append(draft[len(draft) - (len(tokens) - end)])
            if draft:
                return draft
        return []


@dataclass
class PromptLookup(Draft):
    """Drafts what followed the last tokens of a branch when they stood before: in its own text, in
    its prompt, or in another branch of the same problem (Saxena, "Prompt lookup decoding", 2023,
    over the texts of the whole tree).

    shortest, longest: how many tokens have to be equal, the longest run first.
    """

    shortest: PositiveInt = 2
    longest: int = 4

    _lookups: OrderedDict[int, Lookup] = field(
        init=False, repr=False, compare=False, default_factory=OrderedDict
    )

    def refusals(self) -> Mapping[str, object]:
        return {
            f"speculation.shortest={self.shortest} must be at most "
            f"speculation.longest={self.longest}": self.shortest > self.longest
        }

    def propose(
        self, branches: Sequence[Branch], counts: Sequence[int], samplings: Sequence[Sampling]
    ) -> list[list[int]]:
        lookups = [self._lookup(branch) for branch in branches]
        return [
            lookup.next_tokens(branch.tokens, count) if count else []
            for lookup, branch, count in zip(lookups, branches, counts, strict=True)
        ]

    def _lookup(self, branch: Branch) -> Lookup:
        sizes = range(self.shortest, self.longest + 1)
        lookup = self._lookups.setdefault(branch.root_id, Lookup(sizes))
        self._lookups.move_to_end(branch.root_id)
        if len(self._lookups) > PROBLEMS:
            self._lookups.popitem(last=False)
        lookup.follow(branch)
        return lookup
