"""The model rates its own answers (RKSC, verify pass), on each branch's own KV or on a fresh prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ttc.approximate.early_exit import EarlyExit
from ttc.calibration.layer_profile import Profile, layer_profile
from ttc.checks import check_kind
from ttc.engine import Engine
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.protocols import Backend, Need, ScoresWithin, SideBranches
from ttc.text.chat import QUESTION, chat_tokens, following, has_template, next_turn_text
from ttc.text.prompt import NEXT_QUESTION, raw_tokens
from ttc.tree.branch import Branch, by_problem
from ttc.tree.segment import common_prefix

GRADER = "Here is a problem and a proposed solution. Judge whether the solution's final answer is correct."


@dataclass(frozen=True)
class SelfVerifier:
    """Asks the model whether a branch's answer is correct: P(yes) / (P(yes) + P(no)), one score per branch.

    The question is forked onto the branch, so that a dozen tokens are computed instead of the problem and its answer
    again. All spellings of yes and no that are single tokens count. The branches stay as they are.

    exit: lets branches leave the pass before the last layer (CGEE level 2; approximate, see `EarlyExit` for what their
    scores may be compared with). The question is part of that pass, so its rows are saved too. `positive` is set here.
    fresh: RKSC's way instead. The model is asked on a new prompt: a grader's instruction, the whole problem, the
    branch's text, then the question. What the prompts of a problem share is computed once, and through all layers;
    an exit saves of what follows.
    Raises InvalidInput for an empty question; for an exit on a backend that is no `ScoresWithin`, and for fresh prompts
    on one that is no `SideBranches`.
    """

    needs: ClassVar[tuple[Need, ...]] = ("score",)

    question: str = "Is the answer above correct? Reply with Yes or No."
    exit: EarlyExit | None = None
    fresh: bool = False

    def __post_init__(self) -> None:
        check_kind("question", self.question, isinstance(self.question, str), "text")
        if not self.question.strip():
            raise InvalidInput("the verifier's question is empty")

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        yes, no = spellings(backend, "yes"), spellings(backend, "no")
        wanted = [[[t] for t in (*yes, *no)]] * len(branches)
        if isinstance(backend, ScoresWithin):  # the question is part of the pass that rates
            exit = None if self.exit is None else replace(self.exit, positive=len(yes))
            with self._asked_within(branches, questions, backend) as (before, given):
                found = backend.score_within(before, given, wanted, exit=exit)
        elif self.exit is None:
            with self._asked(branches, questions, backend) as asked:
                found = backend.score(asked, wanted)
        else:
            raise InvalidInput(
                f"exit leaves the model between two layers, as an Engine can; {type(backend).__name__} has no "
                "score_within, so leave the exit out"
            )
        return [[_ratio([row[0] for row in rows], len(yes))] for rows in found]

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        """The most verifier tokens that rating these branches takes: what is asked, and each branch's last token."""
        asked = self._prompts(branches, questions, backend) if self.fresh else self._follow_ups(branches, backend)
        return sum(len(tokens) + 1 for tokens in asked)

    def profiles(self, branches: Sequence[Branch], questions: Sequence[str], engine: Engine) -> list[Profile]:
        """What each layer says of each branch when it is asked in full; P after the last one is its rating."""
        yes, no = spellings(engine, "yes"), spellings(engine, "no")
        with self._asked_within(branches, questions, engine) as (before, given):
            return layer_profile(engine, before, given, [[*yes, *no]] * len(branches), len(yes))

    @contextmanager
    def _asked(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Iterator[Sequence[Branch]]:
        """Branches that end with the question, all layers of it computed."""
        made: list[Branch] = []
        try:
            if self.fresh:
                made += _side_branches(backend, branches, self._prompts(branches, questions, backend))
            else:
                given = self._follow_ups(branches, backend)
                for branch, tokens in zip(branches, given, strict=True):
                    (child,) = backend.fork(branch, 1)
                    made.append(child)
                    child.reopen(int(_ends_otherwise(branch, tokens, backend)))
                backend.extend(made, _as_they_follow(branches, given), purpose="verifier")
            yield made
        finally:
            backend.release(made)

    @contextmanager
    def _asked_within(
        self, branches: Sequence[Branch], questions: Sequence[str], engine: Backend
    ) -> Iterator[tuple[Sequence[Branch], list[list[int]]]]:
        """Branches, and what is asked after each of them within the pass that rates it."""
        if not self.fresh:
            with self._ended_by_the_template(branches, engine) as asked:
                yield asked
            return
        prompts = self._prompts(branches, questions, engine)
        starts = [1] * len(prompts)
        for rows in by_problem(branches):
            if len(rows) > 1:  # what they share stays in the tree and is computed for all of them at once
                first, *others = [prompts[row] for row in rows]
                shared = min(len(first) - 1, *(common_prefix(first, other[:-1]) for other in others))
                for row in rows:
                    starts[row] = max(1, shared)
        made = _side_branches(engine, branches, [p[:n] for p, n in zip(prompts, starts, strict=True)])
        try:
            yield made, [p[n:] for p, n in zip(prompts, starts, strict=True)]
        finally:
            engine.release(made)

    @contextmanager
    def _ended_by_the_template(
        self, branches: Sequence[Branch], engine: Backend
    ) -> Iterator[tuple[Sequence[Branch], list[list[int]]]]:
        """Branches that have ended as the chat template ends a turn, or are to, and what is asked after each."""
        given = self._follow_ups(branches, engine)
        asked, following_tokens = list(branches), _as_they_follow(branches, given)
        odd = [
            i for i, (b, tokens) in enumerate(zip(branches, given, strict=True)) if _ends_otherwise(b, tokens, engine)
        ]
        prompts = [[*branches[i].tokens[:-1], given[i][0]] for i in odd]
        made = _side_branches(engine, [branches[i] for i in odd], prompts) if odd else []
        try:
            for i, branch in zip(odd, made, strict=True):
                asked[i], following_tokens[i] = branch, given[i][1:]
            yield asked, following_tokens
        finally:
            engine.release(made)

    def _follow_ups(self, branches: Sequence[Branch], backend: Backend) -> list[list[int]]:
        """What comes after each assistant's answer: the end of its turn, the question, the next turn's start."""
        tokenizer = backend.tokenizer
        if has_template(tokenizer):
            tokens = following(next_turn_text(QUESTION, self.question, tokenizer), tokenizer)
            return [tokens] * len(branches)
        asked = f" {self.question}\nAnswer:"
        begun, usual = following(asked, tokenizer), backend.encode(f"\n\n{asked[1:]}")
        return [begun if branch.cut == NEXT_QUESTION else usual for branch in branches]

    def _prompts(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[int]]:
        """The fresh prompts, nothing cut off."""
        tokenizer: Any = backend.tokenizer
        found = []
        for branch, problem in zip(branches, questions, strict=True):
            text = f"{GRADER}\n\nProblem:\n{problem}\n\nSolution:\n{branch.text.strip()}\n\n{self.question}"
            if has_template(tokenizer):
                found.append(chat_tokens([{"role": "user", "content": text}], tokenizer))
            else:
                found.append(raw_tokens(f"{text}\nAnswer:", tokenizer))
        return found


def _side_branches(backend: Backend, branches: Sequence[Branch], prompts: list[list[int]]) -> list[Branch]:
    if not isinstance(backend, SideBranches):
        raise InvalidInput(
            "fresh prompts need a backend that makes branches beside a search's own (side_branches); "
            f"{type(backend).__name__} does not"
        )
    return backend.side_branches(branches, prompts)


def _as_they_follow(branches: Sequence[Branch], given: Sequence[list[int]]) -> list[list[int]]:
    """What is asked, without the end of the turn where a finished branch has written that itself."""
    pairs = zip(branches, given, strict=True)
    return [tokens[1:] if b.finish_reason == "eos" and b.tokens[-1] == tokens[0] else tokens for b, tokens in pairs]


def _ends_otherwise(branch: Branch, tokens: Sequence[int], backend: Backend) -> bool:
    """Whether a finished branch has ended its turn with another token than the chat template puts there."""
    ended = branch.finish_reason == "eos" and has_template(backend.tokenizer)
    return ended and branch.tokens[-1] != tokens[0]


def spellings(backend: Backend, word: str) -> list[int]:
    """The tokens that spell `word` alone: lower case, capitalised, upper case, each with and without a space."""
    forms = [space + form for form in (word, word.capitalize(), word.upper()) for space in ("", " ")]
    encoded = [backend.encode(form) for form in forms]
    tokens = sorted({tokens[0] for tokens in encoded if len(tokens) == 1})
    if not tokens:
        raise UnsupportedModel(f"the tokenizer has no single token for {word!r}; use another verifier")
    return tokens


def _ratio(logprobs: Sequence[float], yes: int) -> float:
    top = max(logprobs)
    weights = [math.exp(x - top) for x in logprobs]
    return sum(weights[:yes]) / sum(weights)
