"""The scores of a solution's steps, by any verifier that rates texts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.recipes.processbench.samples import LabelledSample
from search.rating import Rater
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import InvalidInput, TTCError, VerifierError, number_of
from ttc.protocols import Verifier
from ttc.text.prompt import PromptTemplate
from verifiers.reward_model import RewardModel

STEP_END = "\n\n"
"""What stands between the steps of a text that is rated as a whole."""

Scores = list[float] | str
"""A score for each step, or why there are none."""


def reads_steps(verifier: Verifier) -> bool:
    """Whether a verifier takes the steps as they are given. Others are given every beginning of
    the solution as a branch of a model."""
    return isinstance(verifier, RewardModel) and verifier.rates_steps


def rated(
    samples: Sequence[LabelledSample],
    verifier: Verifier,
    backend: Backend | None = None,
    template: PromptTemplate | None = None,
) -> list[Scores]:
    """The scores of each sample's steps. One that cannot be rated does not stop the others.

    backend, template: what branches stand on, for a verifier that does not read steps.
    """
    try:
        return [*_rated(samples, verifier, backend, template)]
    except (InvalidInput, VerifierError) as error:
        if len(samples) == 1:
            return [f"{type(error).__name__}: {error}"]
    return [rated([sample], verifier, backend, template)[0] for sample in samples]


def _rated(
    samples: Sequence[LabelledSample],
    verifier: Verifier,
    backend: Backend | None,
    template: PromptTemplate | None,
) -> list[list[float]]:
    if isinstance(verifier, RewardModel) and verifier.rates_steps:
        scores = verifier.rate_solutions([(s.problem, s.steps) for s in samples])
    elif backend is None:
        raise TTCError(f"{type(verifier).__name__} rates branches, and no backend was given")
    else:
        scores = [_by_beginnings(s, verifier, backend, template) for s in samples]
    for sample, row in zip(samples, scores, strict=True):
        if len(row) != len(sample.steps) or not all(map(math.isfinite, row)):
            raise VerifierError(
                f"{sample.id} has {number_of(len(sample.steps), 'step')}, and its scores are "
                f"{row!r:.80}"
            )
    return scores


def _by_beginnings(
    sample: LabelledSample, verifier: Verifier, backend: Backend, template: PromptTemplate | None
) -> list[float]:
    prompt = (template or PromptTemplate()).tokens(sample.problem, backend.tokenizer)
    rater = Rater(verifier)
    branches = [backend.root(prompt)]
    try:
        for number, step in enumerate(sample.steps, 1):
            last = number == len(sample.steps)
            branches.append(_longer(branches[-1], step if last else step + STEP_END, last, backend))
        questions = [sample.problem] * len(sample.steps)
        return [row[-1] for row in rater.scores(branches[1:], questions, backend)]
    finally:
        backend.release(branches)
        rater.released(branches)


def _longer(branch: Branch, text: str, last: bool, backend: Backend) -> Branch:
    (child,) = backend.fork(branch, 1)
    for token in backend.encode(text):
        child.append(token, math.nan, math.nan)
    child.end_step("eos" if last else "delimiter")
    child.finish_reason = "eos" if last else None
    return child
