"""Diverse verifier tree search (Beeching et al., 2024): several small trees, one leaf kept in
each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from search.base import Case, SearchSteps, StepwiseSearch
from search.growing import grow, rate_ahead, steps_to
from search.selection import ranked
from ttc.branch import Branch
from ttc.checks import NonNegativeInt, PositiveInt
from ttc.protocols import Aggregation, Release


@dataclass(frozen=True)
class DVTS(StepwiseSearch):
    """Beam search in `subtrees` subtrees that don't compete.

    Each samples `beam_width` continuations a step and keeps the best of them. A subtree ends when
    its kept leaf is finished, the first of equals; at the latest after `max_steps` steps. The
    candidates are the kept leaves and all continuations that were finished.

    subtrees: how many; with N beams and M continuations in the paper, N/M.

    Tokens: subtrees x beam_width x max_steps x s.
    Use it where: beams of one tree become too much alike.
    """

    subtrees: PositiveInt = 4
    beam_width: int = 4
    step_tokens: int = 256
    max_steps: int = 40
    delimiter: str | None = "\n\n"
    aggregation: Aggregation = "last"
    lookahead: NonNegativeInt = 0
    verify_every: PositiveInt = 1
    finish_tokens: NonNegativeInt = 0

    compares_ratings = True

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.step(self.step_tokens, self.delimiter)
        steps = steps_to(self.max_steps, step, self.finish_tokens)
        active, width = [root], self.subtrees * self.beam_width
        first = root.forks  # others may have gone on from the root before
        candidates = list[Branch]()
        for done in range(0, self.max_steps, self.verify_every):
            coming = steps[done : done + self.verify_every]
            children = yield from grow(active, width, coming, self.sampling)
            yield from rate_ahead(children, self.lookahead, step, self.aggregation)
            families: dict[int, list[Branch]] = defaultdict(list)
            for child in children:
                number = child.path[len(root.path)] - first
                families[number // self.beam_width].append(child)
            leaves = [ranked(family)[0] for family in families.values()]
            candidates += [child for child in children if child.finished]
            active = [leaf for leaf in leaves if not leaf.finished]
            kept = {*candidates, *active}
            yield Release([child for child in children if child not in kept])
            if not active:
                break
            width = self.beam_width
        return candidates + active
