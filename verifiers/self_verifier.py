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
from ttc.text.prompt import next_turn, prompt_tokens
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
                for branch in branches:
                    made += backend.fork(branch, 1)
                backend.extend(made, self._follow_ups(branches, backend), purpose="verifier")
            yield made
        finally:
            backend.release(made)

    @contextmanager
    def _asked_within(
        self, branches: Sequence[Branch], questions: Sequence[str], engine: Backend
    ) -> Iterator[tuple[Sequence[Branch], list[list[int]]]]:
        """Branches, and what is asked after each of them within the pass that rates it."""
        if not self.fresh:
            yield branches, self._follow_ups(branches, engine)
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

    def _follow_ups(self, branches: Sequence[Branch], backend: Backend) -> list[list[int]]:
        """What is asked on each branch's own KV."""
        follow_up = self._follow_up(backend)
        # a finished branch has written the end of its turn itself
        return [
            follow_up[1:] if b.finish_reason == "eos" and b.tokens[-1] == follow_up[0] else follow_up for b in branches
        ]

    def _follow_up(self, backend: Backend) -> list[int]:
        """What comes after the assistant's answer: the end of its turn, the question, the next turn's start."""
        text = next_turn(self.question, backend.tokenizer)
        return backend.encode(f"\n\n{self.question}\nAnswer:" if text is None else text)

    def _prompts(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[int]]:
        """The fresh prompts, nothing cut off."""
        tokenizer: Any = backend.tokenizer
        found = []
        for branch, problem in zip(branches, questions, strict=True):
            text = f"{GRADER}\n\nProblem:\n{problem}\n\nSolution:\n{branch.text.strip()}\n\n{self.question}"
            if getattr(tokenizer, "chat_template", None) is None:
                text += "\nAnswer:"
            else:
                messages = [{"role": "user", "content": text}]
                text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            found.append(prompt_tokens(text, tokenizer))
        return found


def _side_branches(backend: Backend, branches: Sequence[Branch], prompts: list[list[int]]) -> list[Branch]:
    if not isinstance(backend, SideBranches):
        raise InvalidInput(
            "fresh prompts need a backend that makes branches beside a search's own (side_branches); "
            f"{type(backend).__name__} does not"
        )
    return backend.side_branches(branches, prompts)


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
