"""One sample of a policy, as a trainer reads it, with its place in the tree of its problem."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ttc.errors import InvalidInput
from ttc.results import Result
from ttc.wording import number_of

Path = tuple[int, ...]


@dataclass(frozen=True)
class Rollout:
    """One leaf of a problem's tree.

    completion_ids: the tokens after the prompt.
    logprobs: of each of them, at temperature 1; NaN for one that the search gave.
    path: the child's index at each fork: rollouts with the same first k share `ends[k - 1]` tokens.
    ends: how many tokens of the completion there are after each step.
    text: the completion without special tokens.
    finished: whether it ended by itself.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    path: Path
    ends: list[int]
    text: str
    finished: bool

    def per_token(self, values: list[float]) -> list[float]:
        """A value of each step, for each token of the completion; 0 for tokens that the model did
        not write."""
        spread: list[float] = []
        for end, value in zip(self.ends, values, strict=True):
            spread += [value] * (end - len(spread))
        return [
            0.0 if math.isnan(logprob) else value
            for value, logprob in zip(spread, self.logprobs, strict=True)
        ]


def rollouts_of(result: Result) -> list[Rollout]:
    """A problem's samples, in the order of their paths. Raises InvalidInput for a failed problem,
    and for samples whose steps are not those of the tree."""
    if result.error is not None:
        raise InvalidInput(f"problem {result.problem.id!r} has no rollouts: {result.error}")
    rollouts = []
    for branch in sorted(result.branches, key=lambda branch: branch.path):
        start = branch.prompt_length
        ends = [end - start for end in branch.step_ends]
        completion = branch.tokens[start:]
        if len(ends) != len(branch.path) or not ends or ends[-1] != len(completion):
            raise InvalidInput(
                f"the branch {branch.path} has {number_of(len(ends), 'step')} and a path of "
                f"{number_of(len(branch.path), 'fork')}; rollouts need one step after each "
                "fork, as search=tree_rollouts and search=self_consistency make them"
            )
        rollouts.append(
            Rollout(
                branch.tokens[:start],
                completion,
                branch.logprobs,
                branch.path,
                ends,
                branch.text,
                branch.finish_reason is not None,
            )
        )
    return rollouts
