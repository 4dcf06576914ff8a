"""What every search algorithm shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from search.selection import C, Voting, Winner, answer_of, best_first, vote, whole
from ttc.backend import Need
from ttc.branch import Branch
from ttc.checks import (
    NonEmptyText,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveInt,
    Share,
    check_flag,
    check_is,
    check_kind,
    check_option,
    check_whole,
)
from ttc.errors import InvalidInput
from ttc.protocols import Aggregation, Append, Expand, Extract, Handoff, Rate, Release, Vary
from ttc.sampling import MinP, Penalty, Sampling
from ttc.step import Step, Thinking
from ttc.text.equality import AnswerReader
from ttc.text.thoughts import Mode, Thoughts
from ttc.tree.branch import check_branches

Request = Vary | Expand | Append | Handoff | Rate | Release
T = TypeVar("T")
Requests = Generator[Request, Any, T]
"""Yields requests, receives their answers, returns what they lead to."""

SearchSteps = Requests[list[Branch]]
"""A whole search returns the candidates that are left."""

StepParts = Generator[Any, None, None]
"""What a branch does next in its step: it decodes a `Step`, is given the tokens of a list, or waits
for the answers of its `search.tools.steps.ToolCalls`. The step is over at the end, or where there
is no room for given tokens."""


@dataclass(frozen=True)
class Case:
    """One problem as its search sees it.

    question: what is asked. end: strings that finish a branch.
    extract: reads the answer out of a text (of a branch: `search.selection.answer_of`); an
    `AnswerReader` also says which answers are the same, for votes.
    thoughts: how the model's thoughts are told from its answers, None for a model without thoughts.
    rng: random numbers of this problem alone, fixed by the run's seed and the problem's id.
    thinking: how long the model may think, None for a model or a backend without thoughts.
    models: the names of the models that a branch may be handed to, the root's first; () for one
    alone.
    """

    question: str = ""
    end: tuple[str, ...] = ()
    extract: Extract = field(default_factory=AnswerReader)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    thoughts: Thoughts | None = None
    thinking: Thinking | None = None
    models: tuple[str, ...] = ()

    def step(self, max_tokens: int, delimiter: str | None = None) -> Step:
        """One step of an answer. Thoughts are parted into steps as the search has it."""
        return Step(max_tokens, delimiter, self.end, thinking=self.thinking)

    def answer(self, max_tokens: int, statistics: bool = False) -> Step:
        """All the rest: the thought, and an answer of so many tokens after it."""
        thinking = self._parted(None)
        return Step(max_tokens, end=self.end, statistics=statistics, thinking=thinking)

    def part(self, tokens: int, statistics: bool = False) -> Step:
        """So many tokens more, of the thought or of the answer."""
        thinking = self._parted(tokens)
        return Step(tokens, end=self.end, statistics=statistics, thinking=thinking)

    def _parted(self, step: int | None) -> Thinking | None:
        return None if self.thinking is None else replace(self.thinking, step=step)

    @property
    def thinking_tokens(self) -> int:
        """The most tokens of a thought that are counted beside those of an answer."""
        return 0 if self.thinking is None else self.thinking.tokens or 0


@dataclass(frozen=True, kw_only=True)
class Search(Options, ABC):
    """An algorithm. Its fields are its whole configuration; it owns no model and no batching.

    temperature, top_k, top_p, min_p, repetition_penalty: how tokens are drawn (see
        `ttc.Sampling`).

    Settings that many searches have:

    n: samples. max_tokens: the most tokens of an answer. beam_size: branches that are kept after a
        step. beam_width: continuations of a branch. step_tokens: the most tokens of a step.
        delimiter: what ends a step before that, None for nothing. max_steps: the most steps.
    aggregation: what makes one score of a branch's step scores.
    statistics: keep what selection rules by the model's own confidence need (see `Step`).
    feedback: what the model is told after an answer.

    Of a model that thinks before it answers:

    thinking: "on" or "off" through the chat template's switch, or how hard to think ("minimal",
        "low", "medium", "high", "xhigh") where it has `reasoning_effort`; "auto" leaves it to the
        template. Without a switch, "off" ends each thought as it begins.
    thinking_tokens: the most tokens of each branch's thought. Then the model's end of thinking is
        put in, and `final` after it. Limits of answers, such as `max_tokens`, count beside it. None
        lets them count thoughts too.
    final: what asks for the answer then.
    stop_loops: close a thought whose last tokens go in circles, and end a branch outside of one
        (`finish_reason` "looped"). None does so for models that think, true for all, false for
        none.
    """

    temperature: NonNegativeFloat = 0.8
    top_k: NonNegativeInt = 0
    top_p: Share = 1.0
    min_p: MinP = 0.0
    repetition_penalty: Penalty | None = None
    thinking: Mode = "auto"
    thinking_tokens: NonNegativeInt | None = 4096
    final: str = "Final Answer:"
    stop_loops: bool | None = None

    common: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(
            ("n", "max_tokens", "beam_size", "beam_width", "step_tokens", "max_steps"), PositiveInt
        ),
        "aggregation": Aggregation,
    }

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty
        )

    def thinks(self, thoughts: Thoughts | None) -> Thinking | None:
        """The limits of a model's thoughts; None for a model without."""
        return None if thoughts is None else Thinking(self.thinking_tokens, self.final)

    @property
    def needs_verifier(self) -> bool:
        return True

    @property
    def draws(self) -> bool:
        """Whether results depend on the seed. Runs that differ in their seed alone are solved once
        where they don't."""
        return True

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the search reads of its branches that not every backend offers."""
        return ("statistics",) if getattr(self, "statistics", False) else ()

    @property
    def puts_words(self) -> bool:
        """Whether it puts words of its own into answers, which then keep to no schema."""
        return False

    @property
    def in_steps(self) -> bool:
        """Whether it writes an answer in several steps, which a server keeps to no schema in."""
        return False

    @property
    def voting(self) -> Voting | None:
        """The rule by which the candidates vote for the answer; None where they don't, or where
        votes weigh something else."""
        return None

    def check_scores(self, verifier: str, least: float, most: float) -> None:
        """Raise InvalidInput for a verifier whose scores, from `least` to `most`, are of no use
        here."""
        if getattr(self, "aggregation", None) == "product" and least < 0:
            raise InvalidInput(
                f"aggregation='product' and {verifier}, whose scores go below zero: their product "
                "would rank by how many there are; use aggregation=mean, min or last"
            )

    @property
    def compares_ratings(self) -> bool:
        """Whether scores of an earlier step compete with those of a later one."""
        return False

    @abstractmethod
    def run(self, root: Branch, case: Case) -> SearchSteps:
        """The algorithm, from a branch that holds the prompt."""

    def choose(self, candidates: Sequence[C], extract: Extract) -> Winner[C]:
        """The best candidate and its answer, by the rule of `voting`, else by
        `search.selection.best_first`.

        candidates: in the order of their paths.
        """
        if self.voting is not None:
            return vote(candidates, extract, self.voting == "weighted")
        if not candidates:
            return None, None
        best = best_first(candidates, extract)[0]
        return best, answer_of(best, extract)


PAUSES: Mapping[str, tuple[str, ...]] = {
    "paragraph": ("\n\n",),
    "sentence": (". ", ".\n", "? ", "?\n", "! ", "!\n"),
    "wait": ("Wait", "wait", "Hmm", "But ", "Alternatively", "However", "Let me"),
}
"""Where a step of a thought ends, by the names of `thinking_step`. A token that shows that a
sentence is over belongs to it."""


@dataclass(frozen=True, kw_only=True)
class StepwiseSearch(Search):
    """A search that rates unfinished branches.

    thinking_step: where a step ends inside of a thought: after a "paragraph", a "sentence" or a
        word like "Wait" ("wait"), after another string, or after a number of tokens. Steps of
        thoughts count among the search's steps, and the end of the thought ends one too. None
        writes a thought as a whole, in the step of the answer that follows it.

    Settings that some of these searches have:

    lookahead: rate a continuation by the end of so many further steps at temperature 0, which are
        then dropped.
    verify_every: rate and select after every so many steps, and after the last one.
    finish_tokens: the last of the steps has no delimiter and at most so many tokens, so that the
        branches run to their end (search-and-learn takes 2,048); 0 makes it a step like the others.
    max_depth: states that are so many steps deep are not continued.
    """

    thinking_step: PositiveInt | NonEmptyText | None = None

    @property
    def in_steps(self) -> bool:
        return True

    def thinks(self, thoughts: Thoughts | None) -> Thinking | None:
        thinking = super().thinks(thoughts)
        step = self.thinking_step
        if thinking is None or thinking.tokens is None or step is None:
            return thinking
        return replace(thinking, step=PAUSES.get(step, (step,)) if isinstance(step, str) else step)


def expand(
    parents: Sequence[Branch], n: int | Sequence[int], step: Step, sampling: Sampling
) -> SearchSteps:
    """Children of each parent (see `Expand`), without those that a decode gate cut off.

    Use it as `children = yield from expand(...)`.
    """
    children = yield Expand(parents, n, step, sampling)
    return (yield from drop_gated(children))


def drop_gated(children: Sequence[Branch]) -> SearchSteps:
    kept = whole(children)
    if gated := [child for child in children if child not in kept]:
        yield Release(gated)
    return kept


def check_request(request: Any) -> None:
    kinds = "Vary, Expand, Append, Handoff, Rate or Release"
    check_is("what the search yielded", request, Request, kinds)
    if isinstance(request, Vary):
        check_branches([request.root], "Vary.root")
        check_whole("Vary.n", request.n, 0)
        return
    check_branches(request.branches, f"{type(request).__name__}.branches")
    if isinstance(request, Expand):
        _check_expand(request)
    elif isinstance(request, Handoff):
        check_is("Handoff.model", request.model, str, "its name")
    elif isinstance(request, Append):
        texts = [request.text] if isinstance(request.text, str) else request.text
        fits = isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts)
        check_kind("Append.text", request.text, fits, "a text, or one for each branch")
    elif isinstance(request, Rate):
        check_option("Rate.aggregation", request.aggregation, Aggregation)


def _check_expand(request: Expand) -> None:
    step, sampling = request.step, request.sampling
    check_is("Expand.step", step, Step, "a Step, as Step(64)")
    check_whole("Step.max_tokens", step.max_tokens, 1)
    check_flag("Step.statistics", step.statistics)
    fits = step.delimiter is None or isinstance(step.delimiter, str | tuple | list)
    check_kind("Step.delimiter", step.delimiter, fits, "a string, several, or None")
    check_is("Step.thinking", step.thinking, Thinking | None, "a ttc.step.Thinking(tokens)")
    check_is("Expand.sampling", sampling, Sampling, "a ttc.Sampling(...)")
