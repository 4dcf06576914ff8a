"""Parallel-Probe (Zheng et al., 2026): chains side by side, each asked for its answer now and then;
those that keep disagreeing are dropped, and all end once the majority stays the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from search.base import COUNT, Case, Limit, Request, SearchSteps, expand
from search.certainty_probe import CertaintyProbe
from search.growing import by_parent
from search.selection import C, Chosen
from ttc.errors import BudgetExceeded, ContextExceeded
from ttc.protocols import Append, Expand, Extract, Release, Step
from ttc.text.reader import ballots_by
from ttc.tree.branch import Branch


@dataclass(eq=False)
class Chain:
    """One chain: its branch, the probe that was asked last, its answer, and how often in a row this
    was not the majority's."""

    branch: Branch
    probe: Branch | None = None
    answer: str | None = None
    disagreed: int = 0


@dataclass(frozen=True)
class ParallelProbe(CertaintyProbe):
    """`n` chains of at most `max_tokens` tokens, all asked for their answers every `every` tokens.

    A probe is that of `CertaintyProbe`. Each round the chains that are left vote with their last
    answers. After `warmup` rounds the search ends once the majority has been the same for `agree`
    rounds in a row. Where it has at least the share `prune_share` of the votes, a chain is dropped
    whose answer was another one in `patience` such rounds in a row; `least` chains are always left.
    The answer is that of the majority.
    """

    limits: ClassVar = {
        "warmup": Limit(0, whole=True),
        "patience": COUNT,
        "least": COUNT,
        "prune_share": Limit(0, 1),
    }

    n: int = 16
    agree: int = 4
    warmup: int = 2
    patience: int = 3
    prune_share: float = 0.5
    least: int = 3

    def run(self, root: Branch, case: Case) -> SearchSteps:
        chains = list[Chain]()
        last = None
        streak = 0
        longest = self.max_tokens + case.thinking_tokens
        with suppress(BudgetExceeded):  # what the chains said last is their answer
            for number, length in enumerate(range(0, longest, self.every)):
                step = case.part(min(self.every, longest - length))
                if not number:
                    children = yield from expand([root], self.n, step, self.sampling)
                    chains = [Chain(child) for child in children]
                else:
                    yield from self.grow(chains, step)
                yield from self.ask([c for c in chains if not c.branch.finished], case)
                for chain in chains:
                    if chain.branch.finished:
                        chain.answer = case.extract(chain.branch.answer_text or "") or None
                majority, share = self.majority(chains, case.extract)
                streak = streak + 1 if majority == last and majority is not None else 1
                last = majority
                if number >= self.warmup:
                    if share >= self.prune_share:
                        yield from self.prune(chains, majority, case.extract)
                    if streak >= self.agree and majority is not None:
                        break
                if all(chain.branch.finished for chain in chains):
                    break
        ends = [chain.probe or chain.branch for chain in chains]
        yield Release([chain.branch for chain in chains if chain.branch not in ends])
        return ends

    def grow(self, chains: Sequence[Chain], step: Step) -> Generator[Request, Any, None]:
        going = [chain for chain in chains if not chain.branch.finished]
        longer = by_parent((yield Expand([c.branch for c in going], 1, step, self.sampling)))
        for chain in going:
            if chain.branch in longer:
                before, chain.branch = chain.branch, longer[chain.branch]
                probe, chain.probe = chain.probe, None
                yield Release([before, *([probe] if probe else [])])

    def ask(self, chains: Sequence[Chain], case: Case) -> Generator[Request, Any, None]:
        """Have chains say their answers. Without room to ask, they keep their last ones."""
        try:
            asked = yield Append([c.branch for c in chains], self.suffix, ends_thinking=True)
        except ContextExceeded:
            return
        probes = by_parent(
            (yield Expand(asked, 1, Step(self.probe_tokens, end=case.end), self.sampling))
        )
        for chain, question in zip(chains, asked, strict=True):
            if (probe := probes.get(question)) is not None:
                chain.probe = probe
                said = (probe.answer_text or "").rpartition(self.suffix)[2]
                chain.answer = self.answer(said, case.extract)
        yield Release(asked)

    def majority(self, chains: Sequence[Chain], extract: Extract) -> tuple[str | None, float]:
        """What most chains vote for, the first of equals, and its share of all votes."""
        votes = [v for v in ballots_by(extract, [c.answer for c in chains]) if v is not None]
        if not votes:
            return None, 0.0
        ((answer, count),) = Counter(votes).most_common(1)
        return answer, count / len(votes)

    def prune(
        self, chains: list[Chain], majority: str | None, extract: Extract
    ) -> Generator[Request, Any, None]:
        if len(chains) <= self.least:
            return
        votes = ballots_by(extract, [chain.answer for chain in chains])
        for chain, given in zip(chains, votes, strict=True):
            chain.disagreed = chain.disagreed + 1 if given != majority else 0
        for chain in list(chains):
            finished, stays = chain.branch.finished, chain.disagreed < self.patience
            if not finished and not stays and len(chains) > self.least:
                chains.remove(chain)
                yield Release([chain.branch, *([chain.probe] if chain.probe else [])])

    def choose(self, candidates: Sequence[C], extract: Extract) -> Chosen[C]:
        answers = [super(ParallelProbe, self).choose([c], extract)[1] for c in candidates]
        votes = ballots_by(extract, answers)
        said = Counter(vote for vote in votes if vote is not None)
        if not said:
            return (candidates[0], None) if candidates else (None, None)
        place = votes.index(said.most_common(1)[0][0])
        return candidates[place], answers[place]
