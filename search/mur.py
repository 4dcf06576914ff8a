"""MUR (Yan et al., 2025): a chain of steps, in which only those that the model is unsure of are
tried several times."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite
from statistics import fmean
from typing import ClassVar

from search.base import Case, SearchSteps, StepwiseSearch, expand
from search.selection import ranked
from ttc.backend import Need
from ttc.branch import Branch
from ttc.checks import PositiveFloat, PositiveInt, Probability
from ttc.protocols import Aggregation, Expand, Rate, Release


@dataclass(frozen=True)
class MUR(StepwiseSearch):
    """One chain, whose unsure steps are sampled several times.

    A step's signal is the mean log-probability of its tokens. Where exp(signal) is below
    `scaling_rate` times exp(momentum), from the second step on, `beam_width` other steps are
    sampled in its place, and the best rated of them goes on.

    scaling_rate: the lower, the fewer steps are sampled again. momentum_rate: the momentum is, of
        the signals of the steps that were kept, momentum_rate x momentum + (1 - momentum_rate) x
        signal, 0 at first.
    beam_width: steps in the place of an unsure one. finish_tokens: after the last step the chain
        has up to so many tokens to its end.

    The authors rate with a generative critic, and end a step before the word "Step".

    Tokens: (1 + beam_width) x max_steps x s + finish_tokens.
    Use it where: most steps are easy, and the verifier can rate unfinished answers.
    """

    beam_width: int = 4
    scaling_rate: PositiveFloat = 0.8
    momentum_rate: Probability = 0.9
    step_tokens: int = 256
    max_steps: int = 20
    delimiter: str | None = "\n\n"
    finish_tokens: PositiveInt = 256
    aggregation: Aggregation = "last"

    needs: ClassVar[tuple[Need, ...]] = ("logprobs",)

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.step(self.step_tokens, self.delimiter)
        chain, momentum = root, 0.0
        for number in range(self.max_steps):
            (grown,) = yield Expand([chain], 1, step, self.sampling)
            unsure = exp(signal(grown)) < exp(momentum) * self.scaling_rate
            if number and unsure:
                others = yield from expand([chain], self.beam_width, step, self.sampling)
                yield Rate(others, self.aggregation)
                best, *worse = ranked(others) or [grown]
                yield Release([*worse, *([] if best is grown else [grown])])
                grown = best
            momentum = self.momentum_rate * momentum + (1 - self.momentum_rate) * signal(grown)
            yield Release([chain])
            chain = grown
            if chain.finished:
                return [chain]
        chain_end: list[Branch] = yield Expand(
            [chain], 1, case.answer(self.finish_tokens), self.sampling
        )
        yield Release([chain])
        return chain_end


def signal(branch: Branch) -> float:
    """The mean log-probability of the tokens of a branch's last step; 0 for none."""
    before = 0 if branch.parent is None else len(branch.parent.tokens) - branch.prompt_length
    logprobs = [value for value in branch.logprobs[max(0, before) :] if isfinite(value)]
    return fmean(logprobs) if logprobs else 0.0
