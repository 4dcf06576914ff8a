"""Compute-optimal search (Snell et al., 2024, arXiv 2408.03314): difficulty decides which search a
problem gets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from search.base import Case, Search, SearchSteps, expand
from search.selection import by_path
from ttc.branch import Branch
from ttc.protocols import Aggregation, Rate


@dataclass(frozen=True)
class ComputeOptimal(Search):
    """Choose the search by the problem's difficulty.

    `n` first samples are rated; their mean score picks the one of `strategies` that solves it.

    strategies: searches with their budgets, one for each bin of the mean score, the lowest
        (hardest) bin first. `python -m experiments.compute_optimal` fits these and `edges`.
    edges: where one bin ends and the next begins, ascending.

    The first samples are charged like all others. They don't compete with what the strategy finds,
    unless a budget ends the search before the strategy is done. The strategy chooses among its
    candidates by its own rule; the answer is read out of the one that it chose.

    Tokens: n L, and those of the chosen search.
    Use it where: problems differ much, and there are runs to fit from.
    """

    n: int = 4
    max_tokens: int = 256
    edges: tuple[float, ...] = ()
    strategies: tuple[Search, ...] = ()
    aggregation: Aggregation = "last"

    def refusals(self) -> Mapping[str, object]:
        edges, bins = list(self.edges), len(self.strategies)
        return {
            "strategies must hold a search for each bin of difficulty; "
            "python -m experiments.compute_optimal fits them from runs": (
                not bins or not all(isinstance(strategy, Search) for strategy in self.strategies)
            ),
            f"edges={edges} must be {bins - 1} ascending scores, between the bins of {bins} "
            "strategies": len(edges) != bins - 1 or edges != sorted(edges),
        }

    @property
    def compares_ratings(self) -> bool:
        return any(strategy.compares_ratings for strategy in self.strategies)

    @property
    def puts_words(self) -> bool:
        return any(strategy.puts_words for strategy in self.strategies)

    @property
    def in_steps(self) -> bool:
        return any(strategy.in_steps for strategy in self.strategies)

    def check_scores(self, verifier: str, least: float, most: float) -> None:
        super().check_scores(verifier, least, most)
        for strategy in self.strategies:
            strategy.check_scores(verifier, least, most)

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.answer(self.max_tokens)
        samples = yield from expand([root], self.n, step, self.sampling)
        scores = yield Rate(samples, self.aggregation)
        strategy = self.strategies[bisect_right(self.edges, fmean(scores))]
        if case.thinking is not None and self.thinking != "off":
            thinking = strategy.thinks(case.thoughts)
            if thinking is not None:
                limits = [thinking.tokens, case.thinking.tokens]
                most = min((limit for limit in limits if limit is not None), default=None)
                thinking = replace(thinking, tokens=most)
            case = replace(case, thinking=thinking)
        candidates = yield from strategy.run(root, case)
        best, _ = strategy.choose(by_path(candidates), case.extract)
        return [] if best is None else [best]
