"""Answers from several candidates that the model reads: Recursive Self-Aggregation (RSA;
Venkatraman et al., 2025) and GenSelect (Toshniwal et al., 2025)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from search.base import Case, Requests, Search, SearchSteps, drop_gated, expand
from search.selection import Voting
from ttc.branch import Branch
from ttc.checks import PositiveInt, Words
from ttc.errors import BudgetExceeded, ContextExceeded, refuse
from ttc.protocols import Aggregation, Expand, Extract, Rate, Release, Vary

WRITE = (
    "Some of these solutions may be wrong. Use what is right in them, and write one better "
    "solution. If all of them are wrong, solve the problem in another way."
)
PICK = (
    "Which of these solutions is right? Compare them, and end with 'The best is Solution N.', N "
    "being its number."
)
PICKED = re.compile(r"solution(?:\s*[#:])?\s*\**(\d+)", re.IGNORECASE)

ReadTogether = list[tuple[Branch, str]]
"""Answers that are read together, each with its text as it is shown."""


@dataclass(frozen=True)
class Aggregate(Search):
    """The model reads some of `n` answers and writes better ones, or picks one, for `rounds`
    rounds.

    rounds: the most rounds. k: how many answers are shown at a time.
    mode: "write" is RSA: in each round n new answers take the place of the old ones, each written
        after reading k of them, drawn at random. "select" is GenSelect: in each round the answers
        meet in groups of at most k (2: pairwise), and one of each group goes on, until one is left.
    m: how many answers or picks are sampled from each group's prompt; most picks decide.
    shown: of each candidate: the "whole" text, its last so many tokens, or the last lines that give
        its "answer", and the line before them.
    thoughts: show a model's thoughts too, and not its answers alone.
    words: what the model is told after the candidates; None for the mode's own words. A pick is the
        last "Solution N" of a text, or a number alone. Of a group without a readable one that
        answer goes on which the search itself would choose.
    answer: that with most votes among the last answers, with the highest total score ("weighted"),
        or the best rated one ("best"). The last two rate all answers.

    Where the context has no room for k candidates, fewer are shown. Where a budget ends a round,
    what it has written stands beside the answers that it has read.

    Tokens: (1 + rounds) x n x L.
    Use it where: the model understands answers that it reads, and first answers vary.
    """

    mode: Literal["write", "select"] = "write"
    n: int = 16
    k: PositiveInt = 4
    m: PositiveInt = 1
    rounds: PositiveInt = 2
    max_tokens: int = 256
    shown: PositiveInt | Literal["whole", "answer"] = "whole"
    thoughts: bool = False
    words: Words | None = None
    answer: Literal["majority", "weighted", "best"] = "majority"
    aggregation: Aggregation = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        selects = self.mode == "select"
        refuse(
            {
                f"k={self.k} is more than the n={self.n} answers that can be read; give a larger n "
                "or a smaller k": self.k > self.n,
                f"m={self.m} is more than the n={self.n} answers of a round; give a larger n or a "
                "smaller m": self.m > self.n and not selects,
                "k=1 leaves nothing to select from; give k=2 or more": self.k == 1 and selects,
            }
        )

    @property
    def needs_verifier(self) -> bool:
        return self.answer != "majority"

    @property
    def puts_words(self) -> bool:
        """A pick keeps to no schema."""
        return self.mode == "select"

    @property
    def compares_ratings(self) -> bool:
        return self.needs_verifier

    @property
    def voting(self) -> Voting | None:
        return None if self.answer == "best" else self.answer

    def run(self, root: Branch, case: Case) -> SearchSteps:
        answers = list[Branch]()
        with suppress(BudgetExceeded):
            step = case.answer(self.max_tokens)
            answers += yield from expand([root], self.n, step, self.sampling)
            yield from self._rated(answers)
            round_of = self._select if self.mode == "select" else self._write
            for _ in range(self.rounds):
                yield from round_of(root, answers, case)
        return answers

    def _rated(self, answers: Sequence[Branch]) -> Requests[None]:
        if self.needs_verifier:
            yield Rate(answers, self.aggregation)

    # ---------------------------------------------------------------- rounds

    def _write(self, root: Branch, answers: list[Branch], case: Case) -> Requests[None]:
        """New answers in the place of `answers` (RSA's Eq. 2 and 3); beside them where the budget
        ends the round."""
        readable = self._readable(answers, case)
        k = min(self.k, len(readable))
        drawn = list[ReadTogether]()
        for _ in range(ceil(self.n / self.m) if readable else 0):
            places = case.rng.choice(len(readable), k, replace=False)
            drawn.append([readable[place] for place in sorted(places)])  # they share what is first
        _, starts = yield from self._starts(root, drawn, self.n, case)
        if not starts:
            return
        old = answers[:]
        yield Release(old)
        new = yield Expand(starts, 1, case.answer(self.max_tokens), self.sampling)
        yield Release(starts)
        cut_short = len(new) < len(starts)
        better = yield from drop_gated(new)
        answers += better
        yield from self._rated(better)
        if not cut_short:
            del answers[: len(old)]

    def _select(self, root: Branch, answers: list[Branch], case: Case) -> Requests[None]:
        """Of each group the answer that most picks name; all where the budget paid no pick."""
        readable = self._readable(answers, case)
        splits = np.array_split(
            case.rng.permutation(len(readable)), max(1, ceil(len(readable) / self.k))
        )
        meeting = [[readable[place] for place in places] for places in splits if len(places) > 1]
        groups, starts = yield from self._starts(root, meeting, self.m * len(meeting), case)
        step = replace(case.answer(self.max_tokens), end=())
        picks = yield Expand(starts, 1, step, self.sampling)
        yield Release([*starts, *picks])
        for place, group in enumerate(groups):
            if texts := [pick.answer_text or "" for pick in picks[place :: len(groups)]]:
                best = self._picked(group, texts, case)
                lost = {id(answer) for answer, _ in group if answer is not best}
                answers[:] = [answer for answer in answers if id(answer) not in lost]

    def _picked(self, group: ReadTogether, picks: Sequence[str], case: Case) -> Branch:
        places = [place for pick in picks if (place := picked(pick, len(group))) is not None]
        if places:
            return group[Counter(sorted(places)).most_common(1)[0][0]][0]
        branch, _ = self.choose([answer for answer, _ in group], case.extract)
        assert branch is not None
        return branch

    def _starts(
        self, root: Branch, groups: Sequence[ReadTogether], n: int, case: Case
    ) -> Requests[tuple[Sequence[ReadTogether], list[Branch]]]:
        """The groups as they fit in the context, and `n` branches that start from their prompts in
        turn; none where not even the smallest groups fit."""
        selects = self.mode == "select"
        while groups and min(map(len, groups)) > int(selects):
            questions = [self._question(group, case) for group in groups]
            try:
                starts = yield Vary(root, n, questions=questions, plain=selects)
            except ContextExceeded:
                groups = [group[:-1] for group in groups]
            else:
                return groups, starts
        return [], []

    # ---------------------------------------------------------------- what is shown

    def _question(self, group: ReadTogether, case: Case) -> str:
        numbered = [f"Solution {place}:\n{text}" for place, (_, text) in enumerate(group, 1)]
        words = self.words or (PICK if self.mode == "select" else WRITE)
        return "\n\n".join([case.question, *numbered, words])

    def _readable(self, answers: Sequence[Branch], case: Case) -> ReadTogether:
        """The answers of which something can be shown."""
        texts = [self._text(answer, case.extract) for answer in answers]
        return [(answer, text) for answer, text in zip(answers, texts, strict=True) if text]

    def _text(self, answer: Branch, extract: Extract) -> str:
        text = self._whole(answer)
        if self.shown == "answer":
            text = last_lines(text, extract)
        elif self.shown != "whole":
            before = max(answer.prompt_length, len(answer.tokens) - self.shown)
            text = text[len(self._whole(answer, before).rstrip("\ufffd")) :]
        return text.strip()

    def _whole(self, answer: Branch, end: int | None = None) -> str:
        """The text up to token `end`."""
        thought, text = answer.parted(end)
        if not self.thoughts:
            return text or ""
        return thought if text is None else "\n".join(filter(None, (thought, text)))


def last_lines(text: str, extract: Extract) -> str:
    """The fewest last lines from which the text's answer is read, and the line before them; the
    last two where there is none."""
    lines = [line for line in text.splitlines() if line.strip()]
    answer, start = extract(text), max(0, len(lines) - 1)
    while answer is not None and start and extract("\n".join(lines[start:])) != answer:
        start -= 1
    return "\n".join(lines[max(0, start - 1) :])


def picked(text: str, count: int) -> int | None:
    """The place, from 0, of the solution among `count` that a text names last; None for none."""
    named = PICKED.findall(text) or re.findall(r"^\W*(\d+)\W*$", text)
    numbers = [int(number) for number in named if len(number) < 9 and 1 <= int(number) <= count]
    return numbers[-1] - 1 if numbers else None
