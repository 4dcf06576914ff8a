"""Sequential revision (Snell et al., 2024, arXiv 2408.03314, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from search.base import Case, Requests, Search, SearchSteps, expand
from search.selection import ranked, vote
from search.turns import REVISE, ask
from ttc.branch import Branch
from ttc.checks import PositiveInt, Words
from ttc.errors import BudgetExceeded, ContextExceeded
from ttc.protocols import Aggregation, Append, Extract, Rate, Release


@dataclass(frozen=True)
class Revision(Search):
    """Chains of answers, each a revision of the ones before.

    n: chains. attempts: the most answers of a chain; after each but the last the model is told
    `feedback`. memory: the most earlier answers of its chain that an attempt sees; the oldest are
    dropped. A chain ends early where the model's context has no room for another attempt.

    Of each chain the answer that gathers the highest total rating is kept, as its best rated
    attempt; among these the same rule decides (best-of-N weighted, within chains and then over
    them). The paper's model was trained to revise; here any model is asked to.

    Tokens: n x attempts x L.
    Use it where: first answers are nearly right.
    """

    n: int = 2
    attempts: PositiveInt = 4
    memory: PositiveInt = 4
    max_tokens: int = 256
    feedback: Words = REVISE
    aggregation: Aggregation = "last"

    compares_ratings = True
    voting = "weighted"

    def run(self, root: Branch, case: Case) -> SearchSteps:
        chains: list[list[Branch]] = []
        with suppress(BudgetExceeded):
            answers = yield from self._answers([root], self.n, case)
            going = chains = [[answer] for answer in answers]
            for _ in range(self.attempts - 1):
                starts = yield from self._starts(root, going)
                if not starts:
                    break
                answers = yield from self._answers(list(starts), 1, case)
                yield Release(list(starts))
                going = [starts[answer.parent] for answer in answers if answer.parent]
                for chain, answer in zip(going, answers, strict=True):
                    chain.append(answer)
        return [_winner(chain, case.extract) for chain in chains]

    def _answers(self, starts: Sequence[Branch], n: int, case: Case) -> SearchSteps:
        step = case.answer(self.max_tokens)
        answers = yield from expand(starts, n, step, self.sampling)
        yield Rate(answers, self.aggregation)
        return answers

    def _starts(
        self, root: Branch, chains: Sequence[list[Branch]]
    ) -> Requests[dict[Branch, list[Branch]]]:
        """Where the next attempts start, each with its chain, of the chains that have room. The
        last attempts are let go; what follows keeps their KV."""
        last = [chain[-1] for chain in chains]
        starts = list[Branch | None]()
        if len(chains[0]) <= self.memory:  # all of them are equally long
            starts += yield from ask(last, self.feedback)
        else:
            for chain in chains:
                starts.append((yield from self._restart(root, chain[-self.memory :])))
        yield Release(last)
        return {start: chain for start, chain in zip(starts, chains, strict=True) if start}

    def _restart(self, root: Branch, attempts: Sequence[Branch]) -> Requests[Branch | None]:
        """The prompt with these attempts, each followed by the feedback; None without room."""
        chain = [root]
        try:
            for attempt in attempts:
                if text := attempt.marked_text:
                    chain += yield Append(chain[-1:], text)
                chain += yield Append(chain[-1:], self.feedback, turn=True)
        except ContextExceeded:
            yield Release(chain[1:])
            return None
        yield Release(chain[1:-1])
        return chain[-1]


def _winner(chain: Sequence[Branch], extract: Extract) -> Branch:
    """The best rated attempt with the answer of the highest total rating; of all without an
    answer."""
    branch, answer = vote(chain, extract, weighted=True)
    return ranked(chain)[0] if branch is None or answer is None else branch
