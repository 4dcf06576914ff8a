"""Solutions to learn from, and what each of their steps is worth (Math-Shepherd; Wang et al.,
2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from search.base import Case, Search, SearchSteps
from ttc.branch import Branch
from ttc.protocols import Expand, Release
from ttc.results import Problem, Result
from ttc.step import Step
from ttc.text.thoughts import Thoughts
from verifiers.reward_model import split_steps

Labels = Literal["soft", "hard", "outcome"]
LABELS: tuple[Labels, ...] = ("soft", "hard", "outcome")


@dataclass(frozen=True)
class Rollouts(Search):
    """`n` solutions, a step at a time, and from the end of every step but the last `continuations`
    to the end.

    All of them are forks in the tree: a continuation computes its own tokens alone. Solutions that
    agree so far are continued once. The result's branches are the solutions; what was continued
    from them is in its tree.
    """

    n: int = 8
    continuations: int = 4
    step_tokens: int = 32
    max_steps: int = 8
    delimiter: str = "\n"

    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = Step(self.step_tokens, self.delimiter, case.end)
        going = [root]
        width = self.n
        ended: list[Branch] = []
        for left in reversed(range(self.max_steps)):
            children: list[Branch] = yield Expand(going, width, step, self.sampling)
            yield Release(going)
            ended += [child for child in children if child.finished]
            going = [child for child in children if not child.finished]
            width = 1
            if not left or not going:
                break
            if self.continuations:
                different = {child.text: child for child in reversed(going)}
                to_the_end = Step(left * self.step_tokens, end=case.end)
                tries: list[Branch] = yield Expand(
                    list(different.values()), self.continuations, to_the_end, self.sampling
                )
                yield Release(tries)
        return ended + going


@dataclass(frozen=True)
class Solution:
    """One solution of a problem.

    values: for each step, the share of the continuations from its end that are right. For the last
    step, and for any that nothing was continued from, it is 1 or 0: whether the solution itself is
    right.
    """

    problem: Problem
    steps: list[str]
    values: list[float]
    correct: bool

    def targets(self, labels: Labels) -> list[float]:
        """What each step is labelled with.

        soft: its value. hard: 1 where any continuation is right (Math-Shepherd's hard estimation),
        else 0. outcome: whether the solution is right, for all steps.
        """
        if labels == "outcome":
            return [float(self.correct)] * len(self.steps)
        return (
            list(self.values) if labels == "soft" else [float(value > 0) for value in self.values]
        )

    def row(self, prompt: str, labels: Labels) -> dict[str, Any]:
        """As TRL's PRMTrainer reads it (stepwise supervision), with the problem's id and step
        values."""
        marks = self.targets("outcome" if labels == "outcome" else "hard")
        return {
            "prompt": prompt.replace("{question}", self.problem.whole_question),
            "completions": self.steps,
            "labels": [mark > 0 for mark in marks],
            "values": self.values,
            "id": self.problem.id,
        }


def solutions(
    result: Result,
    is_right: Callable[[str], bool],
    separator: str,
    thoughts: Thoughts | None = None,
    prompt_end: str | None = None,
) -> list[Solution]:
    """The labelled solutions of a problem that `Rollouts` has solved; texts without any step are
    left out.

    is_right: whether a text ends in the right answer, asked of what follows its thoughts.
    prompt_end: see `Thoughts.begun`.
    """
    texts: dict[tuple[int, ...], str] = {}
    tokens: dict[tuple[int, ...], list[int]] = {}
    for node in result.tree:
        path = tuple(node.path)
        texts[path] = texts[path[:-1]] + node.text if path else ""
        tokens[path] = (tokens[path[:-1]][: node.start] if path else []) + node.token_ids
    on_the_way = {
        branch.path[:end] for branch in result.branches for end in range(len(branch.path) + 1)
    }
    # of each text that was continued, how that ended
    right: dict[str, list[bool]] = defaultdict(list)
    for path, text in texts.items():
        if path not in on_the_way:
            answer: str | None = text
            if thoughts is not None:
                prompt = tokens[()]
                answer = thoughts.split(
                    tokens[path][len(prompt) :], thoughts.begun(prompt, prompt_end)
                ).answer
            right[texts[path[:-1]]].append(answer is not None and is_right(answer))
    labelled = []
    for branch in sorted(result.branches, key=lambda branch: branch.path):
        steps, _ = split_steps(branch.text, separator, finished=True)
        if not steps:
            continue
        correct = branch.answer_text is not None and is_right(branch.answer_text)
        values = [float(correct)] * len(steps)
        for end in range(1, len(branch.path)):
            text = texts[branch.path[:end]]
            done, _ = split_steps(text, separator, finished=True)
            if done and text in right:
                values[len(done) - 1] = sum(right[text]) / len(right[text])
        values[-1] = float(correct)
        labelled.append(Solution(result.problem, steps, values, correct))
    return labelled
