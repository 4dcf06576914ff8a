"""φ-decoding (Xu et al., 2025): chains whose every step is drawn by what would follow it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import log
from typing import ClassVar

import numpy as np

from search.base import Case, SearchSteps, StepwiseSearch, expand
from search.growing import by_parent
from search.mur import signal
from ttc.backend import Need
from ttc.branch import Branch
from ttc.checks import PositiveInt
from ttc.errors import BudgetExceeded
from ttc.protocols import Expand, Release

ROUNDS = 20
"""The most rounds of k-means; a few texts stand still after two or three."""
SIGMAS = 1.0
"""A step that is less likely than the mean by more standard deviations is left out."""
TEMPERATURE = 0.1
"""Of the softmax of advantages, from which chains are drawn."""
ROUNDING = 1e-6
"""Log-probabilities that differ by less are equal: what decodes beside a chain may round them
differently, and texts that repeat themselves have advantages of 0 but for that."""
AGREED = 0.7
"""The share of the foresights in one cluster from which on no more are looked at."""


@dataclass(eq=False)
class Chain:
    """A chain with one step more, and its foresight: the rest of the answer, as it was sampled.

    before: what the foresight of the chain was worth. A candidate that has ended is its own
    foresight.
    """

    branch: Branch
    before: float
    foresight: Branch = field(init=False)

    def __post_init__(self) -> None:
        self.foresight = self.branch

    @property
    def value(self) -> float:
        return signal(self.foresight)

    @property
    def advantage(self) -> float:
        return self.value - self.before

    @property
    def text(self) -> str:
        return self.foresight.steps[-1]


@dataclass(frozen=True)
class PhiDecoding(StepwiseSearch):
    """Chains whose every step is drawn by how the model goes on after it.

    One of `beam_size` chains is the answer. For each step, `beam_width` candidates are sampled for
    each chain. Those whose step is less likely than the mean by more than a standard deviation are
    left out. Of each other the rest of the answer is sampled: its foresight. The next chains are
    drawn with the mean of two probabilities: the softmax of the foresights' advantages
    over 0.1, and the softmax of the shares of the clusters that they are in.
    Advantage: the foresight's mean log-probability, less that of the chain's last foresight.
    Where enough candidates have an advantage, the others are not drawn.

    finish_tokens: the most tokens of a foresight. clusters: those of k-means over TF-IDF vectors.
    least_steps: after so many, no more are looked at once a cluster holds more than 70% of the
        foresights.

    The foresights of the chains are their ends; one of the larger of two clusters
    of these is drawn by its advantage.

    It differs from the authors' program in three points: the foresights of the last chains are not
    sampled once more; the end is always drawn in the larger of two clusters, not only where some
    have an advantage; and single digits count as words, since here they are often the answer.

    Tokens: beam_size x beam_width x max_steps x (s + finish_tokens).
    Use it where: there is no verifier, and later steps show which earlier ones were right.
    """

    beam_size: int = 4
    beam_width: int = 4
    clusters: PositiveInt = 3
    least_steps: PositiveInt = 4
    step_tokens: int = 256
    max_steps: int = 8
    delimiter: str | None = "\n\n"
    finish_tokens: PositiveInt = 256

    needs_verifier = False
    needs: ClassVar[tuple[Need, ...]] = ("logprobs",)

    def run(self, root: Branch, case: Case) -> SearchSteps:
        chains = [Chain(root, 0.0)]
        new = list[Chain]()
        step = case.step(self.step_tokens, self.delimiter)
        rest = case.answer(self.finish_tokens)
        with suppress(BudgetExceeded):  # the ends of the chains so far are drawn from
            for number in range(1, self.max_steps + 1):
                going = [chain for chain in chains if not chain.branch.finished]
                if not going:
                    break
                width = self.beam_width * (self.beam_size if number == 1 else 1)
                worth = {chain.branch: 0.0 if number == 1 else chain.value for chain in going}
                children = yield from expand(list(worth), width, step, self.sampling)
                new = [Chain(b, worth[b.parent]) for b in children if b.parent is not None]
                likely = self.likely(new, case.rng)
                yield Release(_branches(new, likely))
                new = likely
                open_ends = [c.branch for c in new if not c.branch.finished]
                ends = by_parent((yield Expand(open_ends, 1, rest, self.sampling)))
                for candidate in new:
                    candidate.foresight = ends.get(candidate.branch, candidate.branch)
                pool = [chain for chain in chains if chain.branch.finished] + new
                if not pool:
                    break
                before, chains = chains, self.drawn(pool, case.rng)
                yield Release(_branches([*before, *pool], chains))
                if number >= self.least_steps and self.agreed(pool, case.rng):
                    break
        chains = new if chains[0].branch is root else chains
        if not chains:
            return []
        answer = self.end(chains, case.rng)
        yield Release(_branches(chains, [answer]))
        if answer.foresight is not answer.branch:
            yield Release([answer.branch])
        return [answer.foresight]

    def likely(self, candidates: list[Chain], rng: np.random.Generator) -> list[Chain]:
        """Pruning in width: the candidates that are looked at further, at least `beam_size`, more
        by how likely their steps are."""
        signals = np.array([signal(candidate.branch) for candidate in candidates])
        if not len(signals):
            return []
        keep = signals > signals.mean() - SIGMAS * signals.std() + ROUNDING
        lacking = min(self.beam_size, len(signals)) - int(keep.sum())
        if lacking > 0:
            others = np.flatnonzero(~keep)
            chances = softmax(signals[others] / TEMPERATURE)
            keep[rng.choice(others, lacking, replace=False, p=chances)] = True
        return [c for c, stays in zip(candidates, keep, strict=True) if stays]

    def drawn(self, candidates: list[Chain], rng: np.random.Generator) -> list[Chain]:
        """The `beam_size` chains that go on, in the order of the candidates."""
        count = min(self.beam_size, len(candidates))
        better = [candidate for candidate in candidates if candidate.advantage > ROUNDING]
        enough = len(better) >= count
        candidates = better if enough else candidates
        chances = softmax([c.advantage / TEMPERATURE for c in candidates])
        if enough:
            labels = clusters([c.text for c in candidates], self.clusters, rng)
            shares = [labels.count(label) / len(labels) for label in labels]
            chances = (chances + softmax(shares)) / 2
        places = rng.choice(len(candidates), count, replace=False, p=chances)
        return [candidates[place] for place in sorted(places)]

    def agreed(self, candidates: Sequence[Chain], rng: np.random.Generator) -> bool:
        """Pruning in depth: whether most foresights are in one cluster."""
        labels = clusters([candidate.text for candidate in candidates], self.clusters, rng)
        return max(map(labels.count, labels)) > AGREED * len(labels)

    def end(self, chains: Sequence[Chain], rng: np.random.Generator) -> Chain:
        labels = clusters([chain.text for chain in chains], 2, rng)
        largest = Counter(labels).most_common(1)[0][0]
        alike = [c for c, label in zip(chains, labels, strict=True) if label == largest]
        chances = softmax([chain.advantage / TEMPERATURE for chain in alike])
        return alike[int(rng.choice(len(alike), p=chances))]


def _branches(candidates: Sequence[Chain], kept: Sequence[Chain]) -> list[Branch]:
    """The branches of candidates that no kept one needs."""
    needed = {branch for c in kept for branch in (c.branch, c.foresight)}
    all_of = dict.fromkeys(branch for c in candidates for branch in (c.branch, c.foresight))
    return [branch for branch in all_of if branch not in needed and not branch.released]


def softmax(values: Sequence[float] | np.ndarray) -> np.ndarray:
    powers = np.exp(np.array(values) - max(values))
    return np.asarray(powers / powers.sum())


def clusters(texts: Sequence[str], count: int, rng: np.random.Generator) -> list[int]:
    """The number of the cluster of each text, by k-means; equal texts have the same."""
    points = tf_idf(texts)
    different = np.unique(points, axis=0)
    centers = different[rng.permutation(len(different))[:count]]
    labels = np.zeros(len(points), int)
    for _ in range(ROUNDS):
        distances = ((points[:, None] - centers) ** 2).sum(-1)  # (texts, clusters)
        before, labels = labels, distances.argmin(1)
        for label in set(labels.tolist()):
            centers[label] = points[labels == label].mean(0)
        if (before == labels).all():
            break
    return [int(label) for label in labels]


def tf_idf(texts: Sequence[str]) -> np.ndarray:
    """(texts, words): how often each word is in a text, words of few texts weighing more; rows of
    length 1, or 0 for a text without words."""
    counts = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    words = sorted(set().union(*counts))
    rows = np.array([[count[word] for word in words] for count in counts], float)
    rows = rows.reshape(len(texts), len(words))
    rows *= [1 + log((1 + len(texts)) / (1 + (column > 0).sum())) for column in rows.T]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths == 0, 1, lengths))
