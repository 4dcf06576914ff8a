"""The model rates its answers (RKSC, verify pass), on each branch's KV or on a fresh prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ttc.approximate.early_exit import EarlyExit
from ttc.backend import Backend, Need
from ttc.branch import Branch
from ttc.calibration.layer_profile import BranchProfile, layer_profile
from ttc.checks import Options, Words
from ttc.engine import Engine
from ttc.passes.ratings import pass_by_pass
from ttc.task import Passes, all_of
from ttc.text.chat import QUESTION, following, has_template, next_turn_text
from ttc.text.prompt import NEXT_QUESTION
from ttc.text.thinking_switch import without_thought
from ttc.text.thoughts import Thoughts
from ttc.tree.branch import by_problem
from ttc.tree.segment import common_prefix
from verifiers.side_branches import rated_text, shares, side_tokens, spellings

GRADER = (
    "Here is a problem and a proposed solution. Judge whether the solution's final answer is "
    "correct."
)


@dataclass(frozen=True)
class SelfVerifier(Options):
    """Asks the model whether a branch's answer is correct: P(yes) / (P(yes) + P(no)), one score.

    The question is forked onto the branch, so that a dozen tokens are computed instead of the
    problem and its answer again. All spellings of yes and no that are single tokens count.
    question: what is asked.
    exit: lets branches leave the pass before the last layer (CGEE level 2; approximate, see
        `EarlyExit`). Its `positive` is set here.
    fresh: RKSC's way instead, a new prompt: a grader's instruction, the whole problem, the branch's
        text, then the question. What a problem's prompts share is computed once.
    thoughts: show the model its thoughts too, which the branch's KV always holds; without them
        takes `fresh`. Before there is an answer, the text so far is shown.
    Raises Unsupported for an exit or fresh prompts on a backend that has none.

    Rates: the answer: P(yes) when the model is asked whether it is right.
    Cost: the question's tokens.
    Use it where: there is no second model, and the search's model can judge.
    """

    needs: ClassVar[tuple[Need, ...]] = ("score",)

    question: Words = "Is the answer above correct? Reply with Yes or No."
    exit: EarlyExit | None = None
    fresh: bool = False
    thoughts: bool = True

    def refusals(self) -> Mapping[str, object]:
        return {
            "thoughts=False shows the answer alone, and the branch's KV holds its thoughts; give "
            "fresh=True too": not self.thoughts and not self.fresh
        }

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        word_tokens = spellings(backend, "yes", "no")
        words = [[[token] for group in word_tokens for token in group]] * len(branches)
        exit = None if self.exit is None else replace(self.exit, positive=len(word_tokens[0]))
        side = list[Branch]()
        try:
            starts, suffixes = yield from self._starts(branches, questions, backend, side)
            rows = yield from backend.score(starts, words, given=suffixes, exit=exit).passes()
        finally:
            backend.release(side)
        return [shares([logprob for (logprob,) in row], word_tokens)[:1] for row in rows]

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        if self.fresh:
            prompts = self._prompts(branches, questions, backend)
        else:
            prompts = self._follow_ups(branches, backend)
        return sum(len(tokens) + 1 for tokens in prompts)

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        extra = tokens if self.fresh else 0
        return count * (self.price([parent], [question], backend) + extra)

    def profiles(
        self, branches: Sequence[Branch], questions: Sequence[str], engine: Engine
    ) -> list[BranchProfile]:
        """What each layer says of each branch that is asked in full; after the last one, its
        rating."""
        yes, no = spellings(engine, "yes", "no")
        side = list[Branch]()
        try:
            starts, suffixes = all_of(self._starts(branches, questions, engine, side))
            return layer_profile(engine, starts, suffixes, [[*yes, *no]] * len(branches), len(yes))
        finally:
            engine.release(side)

    # ---------------------------------------------------------------- asking

    def _starts(
        self,
        branches: Sequence[Branch],
        questions: Sequence[str],
        backend: Backend,
        side: list[Branch],
    ) -> Passes[tuple[list[Branch], list[list[int]]]]:
        """What is asked after which branches. side: gets the new ones among these, which whoever
        asks releases."""
        beginnings: list[list[int] | None] = []  # of new branches
        suffixes = []
        if self.fresh:
            prompts = self._prompts(branches, questions, backend)
            for prompt, cut in zip(prompts, _shared_lengths(branches, prompts), strict=True):
                beginnings.append(prompt[:cut])
                suffixes.append(prompt[cut:])
        else:
            template = has_template(backend.tokenizer)
            follow_ups = self._follow_ups(branches, backend)
            for branch, tokens in zip(branches, follow_ups, strict=True):
                ended = branch.finish_reason == "eos"
                same = branch.tokens[-1] == tokens[0]  # it has written its turn's end itself
                suffixes.append(tokens[1:] if ended and (same or template) else tokens)
                otherwise = ended and template and not same
                beginnings.append([*branch.tokens[:-1], tokens[0]] if otherwise else None)
        starts = list(branches)
        new = {i: tokens for i, tokens in enumerate(beginnings) if tokens is not None}
        if new:
            task = backend.side_branches([branches[i] for i in new], list(new.values()))
            side += task.branches
            yield from task.passes()
            for i, branch in zip(new, side, strict=True):
                starts[i] = branch
        return starts, suffixes

    def _follow_ups(self, branches: Sequence[Branch], backend: Backend) -> list[list[int]]:
        """What follows each answer: its turn's end, the question, the next turn's start."""
        tokenizer = backend.tokenizer
        if has_template(tokenizer):
            turns = dict[Thoughts | None, list[int]]()
            for thoughts in dict.fromkeys(branch.thoughts for branch in branches):
                options, closing = without_thought(tokenizer, thoughts)
                turn = next_turn_text(QUESTION, self.question, tokenizer, options)
                turns[thoughts] = following(turn + closing, tokenizer)
            return [turns[branch.thoughts] for branch in branches]
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
