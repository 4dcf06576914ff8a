"""The model rates its answers (RKSC, verify pass), on each branch's KV or on a fresh prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ttc.approximate.early_exit import EarlyExit
from ttc.backend import Backend, Need
from ttc.calibration.layer_profile import BranchProfile, layer_profile
from ttc.checks import Options, Words
from ttc.engine import Engine
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.passes.ratings import pass_by_pass
from ttc.task import Passes, all_of
from ttc.text.chat import QUESTION, following, has_template, next_turn_text
from ttc.text.prompt import NEXT_QUESTION
from ttc.text.thinking_switch import without_thought
from ttc.text.thoughts import Thoughts
from ttc.tree.branch import Branch, by_problem
from ttc.tree.segment import common_prefix
from verifiers.side_branches import rated_text, side_tokens

GRADER = (
    "Here is a problem and a proposed solution. Judge whether the solution's final answer is "
    "correct."
)


@dataclass
class Asking:
    """What is asked of branches. asked: after each of them. replaced: the branches that are asked
    elsewhere, after `beginnings`. side: the branches that hold these; who asks releases them."""

    backend: Backend
    branches: Sequence[Branch]
    asked: list[list[int]]
    replaced: list[int]
    beginnings: list[list[int]]
    side: list[Branch] = field(default_factory=list)

    def starts(self) -> Passes[tuple[list[Branch], list[list[int]]]]:
        starts = list(self.branches)
        if self.replaced:
            of = [starts[i] for i in self.replaced]
            task = self.backend.side_branches(of, self.beginnings)
            self.side = task.branches
            yield from task.passes()
        for i, branch in zip(self.replaced, self.side, strict=True):
            starts[i] = branch
        return starts, self.asked


@dataclass(frozen=True)
class SelfVerifier(Options):
    """Asks the model whether a branch's answer is correct: P(yes) / (P(yes) + P(no)), one score.

    The question is forked onto the branch, so that a dozen tokens are computed instead of the
    problem and its answer again. All spellings of yes and no that are single tokens count.

    exit: lets branches leave the pass before the last layer (CGEE level 2; approximate, see
        `EarlyExit` for what their scores may be compared with). Its `positive` is set here.
    fresh: RKSC's way instead, a new prompt: a grader's instruction, the whole problem, the branch's
        text, then the question. What a problem's prompts share is computed once, through all
        layers.
    thoughts: show the model its thoughts too, which the branch's KV always holds. Without them
        takes `fresh`. While it still thinks there is no answer, and its text so far is shown.
    Raises InvalidInput for an empty question and for thoughts=False without `fresh`, Unsupported
    for an exit or fresh prompts on a backend that has none.

    Rates: the answer: P(yes) when the model is asked whether it is right.
    Cost: the question's tokens.
    Use it where: there is no second model, and the search's model can judge.
    """

    needs: ClassVar[tuple[Need, ...]] = ("score",)

    question: Words = "Is the answer above correct? Reply with Yes or No."
    exit: EarlyExit | None = None
    fresh: bool = False
    thoughts: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.thoughts and not self.fresh:
            raise InvalidInput(
                "thoughts=False shows the answer alone, and the branch's KV holds its thoughts; "
                "give fresh=True too"
            )

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        yes, no = spellings(backend, "yes"), spellings(backend, "no")
        words = [[[token] for token in (*yes, *no)]] * len(branches)
        exit = None if self.exit is None else replace(self.exit, positive=len(yes))
        asking = self._asking(branches, questions, backend)
        try:
            starts, asked = yield from asking.starts()
            logprobs = yield from backend.score(starts, words, given=asked, exit=exit).passes()
        finally:
            backend.release(asking.side)
        return [[yes_share([row[0] for row in rows], len(yes))] for rows in logprobs]

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        if self.fresh:
            asked = self._prompts(branches, questions, backend)
        else:
            asked = self._follow_ups(branches, backend)
        return sum(len(tokens) + 1 for tokens in asked)

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        shown = tokens if self.fresh else 0
        return count * (self.price([parent], [question], backend) + shown)

    def profiles(
        self, branches: Sequence[Branch], questions: Sequence[str], engine: Engine
    ) -> list[BranchProfile]:
        """What each layer says of each branch that is asked in full; after the last one, its
        rating."""
        yes, no = spellings(engine, "yes"), spellings(engine, "no")
        asking = self._asking(branches, questions, engine)
        try:
            starts, asked = all_of(asking.starts())
            return layer_profile(engine, starts, asked, [[*yes, *no]] * len(branches), len(yes))
        finally:
            engine.release(asking.side)

    # ---------------------------------------------------------------- asking

    def _asking(
        self, branches: Sequence[Branch], questions: Sequence[str], engine: Backend
    ) -> Asking:
        if self.fresh:
            prompts = self._prompts(branches, questions, engine)
            cuts = _shared_lengths(branches, prompts)
            replaced = list(range(len(branches)))
            asked = [prompt[cut:] for prompt, cut in zip(prompts, cuts, strict=True)]
            beginnings = [prompt[:cut] for prompt, cut in zip(prompts, cuts, strict=True)]
        else:
            follow_ups = self._follow_ups(branches, engine)
            pairs = list(zip(branches, follow_ups, strict=True))
            replaced = [i for i, pair in enumerate(pairs) if _ends_otherwise(*pair, engine)]
            asked = _after_the_turn(branches, follow_ups)
            for i in replaced:
                asked[i] = follow_ups[i][1:]
            beginnings = [[*branches[i].tokens[:-1], follow_ups[i][0]] for i in replaced]
        return Asking(engine, branches, asked, replaced, beginnings)

    def _follow_ups(self, branches: Sequence[Branch], backend: Backend) -> list[list[int]]:
        """What follows each answer: its turn's end, the question, the next turn's start."""
        tokenizer = backend.tokenizer
        if has_template(tokenizer):
            asked = dict[Thoughts | None, list[int]]()
            for thoughts in dict.fromkeys(branch.thoughts for branch in branches):
                options, closing = without_thought(tokenizer, thoughts)
                turn = next_turn_text(QUESTION, self.question, tokenizer, options)
                asked[thoughts] = following(turn + closing, tokenizer)
            return [asked[branch.thoughts] for branch in branches]
        text = f" {self.question}\nAnswer:"
        begun = following(text, tokenizer)
        usual = backend.encode(f"\n\n{text[1:]}")
        return [begun if branch.cut == NEXT_QUESTION else usual for branch in branches]

    def _prompts(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[int]]:
        prompts = []
        for branch, problem in zip(branches, questions, strict=True):
            solution = rated_text(branch, self.thoughts).strip()
            text = f"{GRADER}\n\nProblem:\n{problem}\n\nSolution:\n{solution}\n\n{self.question}"
            prompts.append(side_tokens(text, backend, thoughts=branch.thoughts))
        return prompts


def _shared_lengths(branches: Sequence[Branch], prompts: Sequence[list[int]]) -> list[int]:
    """How many tokens of each prompt its problem's prompts share: these stay in the tree."""
    lengths = [1] * len(prompts)
    for rows in by_problem(branches):
        if len(rows) > 1:
            first, *others = [prompts[row] for row in rows]
            shared = min(common_prefix(first, other[:-1]) for other in others)
            for row in rows:
                lengths[row] = max(1, min(shared, len(first) - 1))
    return lengths


def _after_the_turn(branches: Sequence[Branch], follow_ups: Sequence[list[int]]) -> list[list[int]]:
    """The follow-ups, without the turn's end where a finished branch has written that itself."""
    after = []
    for branch, tokens in zip(branches, follow_ups, strict=True):
        written = branch.finish_reason == "eos" and branch.tokens[-1] == tokens[0]
        after.append(tokens[1:] if written else tokens)
    return after


def _ends_otherwise(branch: Branch, follow_up: Sequence[int], backend: Backend) -> bool:
    """Whether a finished branch has ended its turn with another token than the chat template."""
    ended = branch.finish_reason == "eos" and has_template(backend.tokenizer)
    return ended and branch.tokens[-1] != follow_up[0]


def spellings(backend: Backend, word: str) -> list[int]:
    """The tokens that spell `word` alone, in any case, with and without a space."""
    cases = (word, word.capitalize(), word.upper())
    forms = [f"{space}{form}" for form in cases for space in ("", " ")]
    encoded = [backend.encode(form) for form in forms]
    tokens = sorted({tokens[0] for tokens in encoded if len(tokens) == 1})
    if not tokens:
        raise UnsupportedModel(
            f"the tokenizer has no single token for {word!r}; use another verifier"
        )
    return tokens


def yes_share(logprobs: Sequence[float], yes: int) -> float:
    highest = max(logprobs)
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    return sum(weights[:yes]) / sum(weights)
