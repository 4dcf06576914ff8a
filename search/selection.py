"""Selection rules: which of a problem's candidates is the answer.

A rule takes samples in the order of their index and returns the place of the one that it chooses,
None where none has an answer that counts. Answers that the grader calls equal are one, invalid ones
have no vote. One without an answer never wins against one that has an answer, whatever their
scores. Scores that agree in six digits are equal, and of equals the lowest index wins, which is the
order of their paths in the tree. The searches choose by these rules, and `python -m
experiments.select` scores all of them from a run's records.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from ttc.branch import Branch
from ttc.checks import PositiveFloat, Share, check_choice, check_option, check_whole
from ttc.protocols import Extract
from ttc.results import BranchRecord, comparable
from ttc.text.equality import ballots_by, canonical

Measure = Literal["mean", "tail", "lowest", "bottom"]
Figure = Literal["score", "logprob", "self_certainty"]
Voting = Literal["majority", "weighted"]
"""The rules of `vote`."""

# ---------------------------------------------------------------- branches, and their records


Candidate = Branch | BranchRecord
"""What a search's choice looks at: a branch, or the record of one."""

C = TypeVar("C", bound=Candidate)
Winner = tuple[C | None, str | None]
"""The chosen candidate and its answer, None for none."""


def whole(branches: Sequence[C]) -> list[C]:
    """The branches that no decode gate cut off; all of them where it cut off every one."""
    kept = [branch for branch in branches if not branch.gated]
    return kept or list(branches)


def ranked(branches: Sequence[C]) -> list[C]:
    """Best score first; equal scores keep their order. What a gate cut off comes last."""
    return sorted(branches, key=_standing, reverse=True)


def _standing(branch: Candidate) -> tuple[bool, float]:
    """What a branch is ranked by: it was not cut off, then its score."""
    return not branch.gated, comparable(branch.score)


def complete(branches: Sequence[C], extract: Extract) -> list[C]:
    """The branches that have finished; all of them where none has, or where only others have an
    answer."""
    finished = [branch for branch in branches if branch.finish_reason is not None]
    if with_answer(finished, extract) or not with_answer(branches, extract):
        return finished or list(branches)
    return list(branches)


def with_answer(branches: Iterable[C], extract: Extract) -> list[C]:
    return [branch for branch in branches if canonical(answer_of(branch, extract)) is not None]


def by_path(branches: Iterable[C]) -> list[C]:
    return sorted(branches, key=lambda branch: branch.path)


def best_first(candidates: Sequence[C], extract: Extract) -> list[C]:
    """Those with an answer first; of these, and of the others, those that no gate cut off, then
    the best score. Equals keep their order. extract: reads an answer."""
    answered = set(map(id, with_answer(candidates, extract)))

    def key(candidate: C) -> tuple[bool, bool, float]:
        return id(candidate) in answered, *_standing(candidate)

    return sorted(candidates, key=key, reverse=True)


def answer_of(candidate: Candidate, extract: Extract) -> str | None:
    """The answer of a candidate, read from what follows its thoughts; None while it still thinks.

    One without `answer_text` (see `Branch.answer_text`) is read as a whole.
    """
    text: str | None = getattr(candidate, "answer_text", candidate.text)
    return None if text is None else extract(text)


def samples_of(
    candidates: Sequence[Candidate],
    extract: Extract,
    confidences: Sequence[Sequence[float] | None] | None = None,
) -> list[Sample]:
    """The candidates as samples, whose votes are those of their answers."""
    answers = [answer_of(candidate, extract) for candidate in candidates]
    votes = ballots_by(extract, answers)
    measured = confidences or [None] * len(candidates)
    return [
        Sample(answer, candidate.score, confidences=confidence, gated=candidate.gated, vote=vote)
        for candidate, answer, vote, confidence in zip(
            candidates, answers, votes, measured, strict=True
        )
    ]


def vote(candidates: Sequence[C], extract: Extract, weighted: bool = False) -> Winner[C]:
    """The best-scored candidate among those with the answer that has most votes, and this answer.

    extract: reads an answer, and says which are the same (see `ballots_by`). weighted: votes weigh
    their score (`weighted_majority`). What a gate cut off has no vote. Without a valid answer it is
    the first candidate, and None.
    """
    samples = samples_of(candidates, extract)
    place = weighted_majority(samples) if weighted else majority(samples)
    if place is not None:
        return candidates[place], samples[place].answer
    if not candidates:
        return None, None
    return whole(candidates)[0], None


# ---------------------------------------------------------------- rules


@dataclass(frozen=True)
class Sample:
    """What a rule knows of one candidate; None is what was not measured.

    answer: as it was read from the text. score: the verifier's. logprob: the mean log-probability
    of its tokens. self_certainty: the mean over its tokens of the divergence from the uniform
    distribution (Kang et al., 2025). confidences: of each token, minus the mean log-probability of
    the 20 likeliest (DeepConf's C_t). gated: a decode gate cut it off.
    vote: what it votes for (see `ttc.text.equality.ballots`); None: its answer as `canonical`
    spells it.
    """

    answer: str | None
    score: float | None = None
    logprob: float | None = None
    self_certainty: float | None = None
    confidences: Sequence[float] | None = None
    gated: bool = False
    vote: str | None = None

    @property
    def ballot(self) -> str | None:
        return canonical(self.answer) if self.vote is None else self.vote

    @classmethod
    def of_record(cls, branch: Mapping[str, Any]) -> Sample:
        names = ("answer", "score", "logprob", "self_certainty", "confidences", "vote")
        values = {name: branch.get(name) for name in names}
        return cls(**values, gated=branch.get("finish_reason") == "gate")


def voted(samples: Sequence[Sample], weights: Sequence[float]) -> int | None:
    """The best-scored sample among those with the answer whose votes weigh most."""
    totals: dict[str, float] = defaultdict(float)
    behind: dict[str, list[int]] = defaultdict(list)
    for place in _whole(samples):
        answer = samples[place].ballot
        if answer is None:
            continue
        totals[answer] += weights[place]
        behind[answer].append(place)
    if not totals:
        return None
    winner = max(totals, key=lambda answer: comparable(totals[answer]))  # the first of equals
    return max(behind[winner], key=lambda place: comparable(samples[place].score))


def majority(samples: Sequence[Sample]) -> int | None:
    """The answer that most samples give (self-consistency; Wang et al., 2023)."""
    return voted(samples, [1.0] * len(samples))


def weighted_majority(samples: Sequence[Sample]) -> int | None:
    """The answer whose votes weigh most (see `score_weights`)."""
    return voted(samples, score_weights(samples))


def score_weights(samples: Sequence[Sample]) -> list[float]:
    """What each sample's vote weighs by its score: more for a higher score, nothing without one.

    Scores from 0 to 1 weigh as they are, logits and other scores without bounds their sigmoid.
    Between the two is no step: with d, at most 1, for how far the scores reach out of [0, 1], the
    weight is (1 - d) times the score, cut to [0, 1], plus d times its sigmoid. So a score that
    moves by a small e moves no weight by more than 2 e.
    """
    scores = [samples[place].score for place in _whole(samples)]
    outside = [max(-score, score - 1.0) for score in scores if score is not None]
    d = min(1.0, max([0.0, *outside]))

    def weight(score: float | None) -> float:
        if score is None:
            return 0.0
        cut = min(max(score, 0.0), 1.0)
        return (1 - d) * cut + d * _sigmoid(score)

    return [weight(sample.score) for sample in samples]


def _sigmoid(score: float) -> float:
    return math.exp(min(score, 0.0)) / (1 + math.exp(-abs(score)))


def best(samples: Sequence[Sample], by: Figure = "score") -> int | None:
    """The sample with the highest score, log-probability or self-certainty among those that have
    an answer; among all where none has."""

    def key(place: int) -> tuple[bool, float]:
        sample = samples[place]
        return sample.ballot is not None, comparable(getattr(sample, by))

    return max(_whole(samples), key=key, default=None)


def borda(
    samples: Sequence[Sample], by: Figure = "self_certainty", power: float = 0.5
) -> int | None:
    """Votes that weigh (N - r + 1)^power for the sample of rank r among N (Kang et al., 2025).

    power: 0 is the majority; the larger it is, the more the best sample decides.
    """

    def key(place: int) -> tuple[float, bool]:
        sample = samples[place]
        return comparable(getattr(sample, by)), sample.ballot is not None

    weights = [0.0] * len(samples)
    for r, place in enumerate(sorted(range(len(samples)), key=key, reverse=True), 1):
        weights[place] = (len(samples) - r + 1) ** power
    return voted(samples, weights)


def soft_best_of_n(samples: Sequence[Sample], temperature: float = 0.1) -> list[float]:
    """The probability of each sample to be chosen, proportional to exp(score / temperature).

    It is the one rule that draws: near temperature 0 it is `best`, at a high one all samples are
    alike. A sample without a score is never drawn, one without an answer only where none has one.
    """
    check_option("temperature", temperature, PositiveFloat)
    scores: dict[int, float] = {}
    counted = _whole(samples)
    answered = [place for place in counted if samples[place].ballot is not None]
    for place in answered or counted:
        score = samples[place].score
        if score is not None:
            scores[place] = score
    top = max(scores.values(), default=0.0)
    weights = [0.0] * len(samples)
    for place, score in scores.items():
        weights[place] = math.exp((score - top) / temperature)
    total = sum(weights)
    if not total:
        return weights
    return [weight / total for weight in weights]


def confidence_vote(
    samples: Sequence[Sample], keep: float = 1.0, measure: Measure = "lowest", window: int = 2048
) -> int | None:
    """Votes weighed by confidence, of the most confident share `keep` of the samples that have an
    answer: those at or above the (1 - keep) quantile (DeepConf offline).

    measure, window: see `trace_confidence`.
    """
    check_option("keep", keep, Share)
    weights = [0.0] * len(samples)
    valid = [place for place in _whole(samples) if samples[place].ballot is not None]
    if not valid:
        return None
    for place in valid:
        confidences = samples[place].confidences or []
        weights[place] = trace_confidence(confidences, measure, window)
    quantile = np.quantile([weights[place] for place in valid], 1 - keep)
    threshold = comparable(float(quantile))
    counted = [weight if comparable(weight) >= threshold else 0.0 for weight in weights]
    return voted(samples, counted)


def trace_confidence(
    confidences: Sequence[float], measure: Measure = "lowest", window: int = 2048
) -> float:
    """How sure the model was of a text, from each token's confidence C_t (DeepConf; Fu et al.,
    2025).

    measure: "mean" over all tokens; "tail", over the last `window`; "lowest", the lowest group,
    where a group is the mean over `window` tokens in a row; "bottom", the mean of the lowest tenth
    of the groups. A text shorter than `window` is one group. 0 for no tokens.
    """
    check_choice(measure, get_args(Measure), f"measure={measure!r} is unknown")
    check_whole("window", window, 1)
    values = np.asarray(confidences, dtype=float)
    if not len(values):
        return 0.0
    if measure == "mean" or len(values) <= window:
        return float(values.mean())
    if measure == "tail":
        return float(values[-window:].mean())
    sums = np.concatenate([[0.0], values.cumsum()])
    groups = np.sort((sums[window:] - sums[:-window]) / window)
    if measure == "lowest":
        return float(groups[0])
    tenth = max(1, len(groups) // 10)
    return float(groups[:tenth].mean())


def _whole(samples: Sequence[Sample]) -> list[int]:
    """The places of the samples that no decode gate cut off; all where none of these has an
    answer."""
    kept = [place for place, sample in enumerate(samples) if not sample.gated]
    answered = any(samples[place].ballot is not None for place in kept)
    return kept if answered else list(range(len(samples)))


# ---------------------------------------------------------------- all of them by name


@dataclass(frozen=True)
class Rule:
    """A rule by its name. needs: the field of `Sample` that it reads.

    choose: gives the place of one sample, or every sample's probability.
    """

    name: str
    needs: str
    choose: Callable[[Sequence[Sample]], int | list[float] | None]

    def chances(self, samples: Sequence[Sample]) -> list[float]:
        """The probability of each sample to be chosen."""
        chosen = self.choose(samples)
        if isinstance(chosen, list):
            return chosen
        return [float(place == chosen) for place in range(len(samples))]


def all_rules(temperature: float = 0.1) -> list[Rule]:
    """Every rule. temperature: of soft best-of-n."""
    return [
        Rule("majority", "answer", majority),
        Rule("weighted", "score", weighted_majority),
        Rule("best", "score", best),
        Rule("soft_best", "score", partial(soft_best_of_n, temperature=temperature)),
        Rule("borda_score", "score", partial(borda, by="score")),
        Rule("likeliest", "logprob", partial(best, by="logprob")),
        Rule("self_certainty", "self_certainty", partial(best, by="self_certainty")),
        Rule("borda", "self_certainty", borda),
        Rule("confidence", "confidences", confidence_vote),
        Rule("confidence_top90", "confidences", partial(confidence_vote, keep=0.9)),
        Rule("confidence_top10", "confidences", partial(confidence_vote, keep=0.1)),
    ]
