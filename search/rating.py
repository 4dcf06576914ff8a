"""How branches come by their scores: the verifier is asked, checked, and its step scores made
one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Integral

from ttc.backend import Backend, check_needs
from ttc.branch import Branch
from ttc.errors import UnusableScores, VerifierError, number_of, refuse, refusing
from ttc.origin import error_text
from ttc.passes.ratings import passes_of_rating
from ttc.protocols import Aggregation, Forgets, Priced, Verifier
from ttc.results import Problem
from ttc.sampling import Sampling
from ttc.task import Passes, all_of
from ttc.text.conversation import Conversation
from ttc.text.prompt import PromptTemplate
from ttc.tree.branch import by_model


@dataclass(frozen=True)
class Rater:
    """A verifier whose answers are checked. Raises VerifierError, naming it, if anything goes
    wrong."""

    verifier: Verifier | None

    @property
    def name(self) -> str:
        return type(self.verifier).__name__

    def scores(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[float]]:
        """The step scores of each branch: at least one, all finite."""
        return all_of(self.rating(branches, questions, backend))

    def rating(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        """`scores`, pass by pass where the verifier can stop between two."""
        if self.verifier is None:
            raise VerifierError(
                "the search asked for scores, and there is no verifier; give verifier=..."
            )
        with self._named():
            ratings = yield from self._ratings(self.verifier, branches, questions, backend)
        with refusing(
            (Exception, SystemExit),
            f"{self.name} returned {ratings!r:.80}, which does not read as scores ({{error}}); "
            "give a list for each branch, as [[0.5], [0.9]]",
            VerifierError,
        ):
            scores = [[float(score) for score in steps] for steps in ratings]
        returned = number_of(sum(map(bool, scores)), "rating")
        expected = number_of(len(branches), "branch", "branches")
        endless = (steps for steps in scores if not all(map(math.isfinite, steps)))
        strange = next(endless, None)
        refuse(
            {
                f"{self.name} returned {returned} for {expected}": (
                    len(scores) != len(branches) or not all(scores)
                ),
                f"{self.name} returned the score {strange}; scores must be finite": strange,
            },
            VerifierError,
        )
        return scores

    def _ratings(
        self,
        verifier: Verifier,
        branches: Sequence[Branch],
        questions: Sequence[str],
        backend: Backend,
    ) -> Passes[Sequence[Sequence[float]]]:
        """Those of the verifier. One that asks a model about its own branches is called once per
        model."""
        if "score" not in getattr(verifier, "needs", ()) or not backend.models:
            ratings: Sequence[Sequence[float]] = yield from passes_of_rating(
                verifier, branches, questions, backend
            )
            return ratings
        scores: dict[int, Sequence[float]] = {}
        for name, places in by_model(branches).items():
            own, texts = [branches[i] for i in places], [questions[i] for i in places]
            ratings = yield from passes_of_rating(verifier, own, texts, backend.models[name])
            scores |= dict(zip(places, ratings, strict=True))
        return [scores[place] for place in range(len(branches))]

    def _named(self, call: str = "") -> AbstractContextManager[None]:
        """What the verifier's own code raises is told with its name."""
        says = f"{self.name}{call} raised {{error}}"
        return refusing((Exception, SystemExit), says, VerifierError, words=error_text)

    def check_product(self, scores: Sequence[Sequence[float]]) -> None:
        """Refuse scores below zero, whose product says how many there are before how good."""
        least = min(map(min, scores), default=0.0)
        if least < 0:
            raise UnusableScores(
                f"aggregation=product and {self.name}, which gave the score {least:g}: a product "
                "with scores below zero would rank by how many there are; use aggregation=mean, "
                "min or last"
            )

    def price(self, branches: Sequence[Branch], question: str, backend: Backend) -> int:
        """The most tokens that rating these branches reads, 0 where the verifier does not say."""
        verifier = self.verifier
        if not isinstance(verifier, Priced):
            return 0
        questions = [question] * len(branches)
        return self._checked("price", lambda: verifier.price(branches, questions, backend))

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        """Likewise of so many children, each with so many tokens more than their parent."""
        own = getattr(self.verifier, "children_price", None)
        if own is None:
            return count * self.price([parent], question, backend)
        return self._checked(
            "children_price", lambda: own(parent, question, backend, tokens, count)
        )

    def _checked(self, method: str, price: Callable[[], int]) -> int:
        with self._named(f".{method}"):
            tokens = price()
        if not isinstance(tokens, Integral) or tokens < 0:
            raise VerifierError(
                f"{self.name}.{method} returned {tokens!r:.80}; give the most tokens, a whole "
                "number from 0 on"
            )
        return int(tokens)

    def released(self, branches: Sequence[Branch]) -> None:
        if branches and isinstance(self.verifier, Forgets):
            with self._named(".released"):
                self.verifier.released(branches)


def aggregate(step_scores: Sequence[float], how: Aggregation) -> float:
    """One score from a branch's step scores: the smallest, the product, the last or the mean."""
    if how == "min":
        return min(step_scores)
    if how == "product":
        return math.prod(step_scores)
    if how == "mean":
        return sum(step_scores) / len(step_scores)
    return step_scores[-1]


def try_verifier(
    verifier: Verifier,
    engine: Backend,
    problem: str | Problem,
    *,
    template: PromptTemplate | None = None,
    max_tokens: int = 8,
) -> list[float]:
    """The step scores of one short branch of `problem`, so that a verifier that cannot work fails
    before a long run.

    Raises VerifierError with the reason, InvalidInput where the backend lacks what it needs.
    """
    check_needs(verifier, engine)
    if isinstance(problem, str):
        problem = Problem(problem)
    rater, branches = Rater(verifier), list[Branch]()
    if problem.messages is not None:
        template = Conversation.of(problem.messages, template)
    template = template or PromptTemplate()
    prompt = template.tokens(problem.question, engine.tokenizer)
    try:
        branches.append(engine.root(prompt))
        branches[0].about = problem.metadata
        branches += engine.fork(branches[0], 1)
        engine.generate(branches[1:], max_tokens, sampling=Sampling(temperature=0))
        (scores,) = rater.scores(branches[1:], [template.question_text(problem.question)], engine)
    finally:
        engine.release(branches)
        rater.released(branches)
    return scores
