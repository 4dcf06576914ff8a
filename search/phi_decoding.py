"""φ-decoding (Xu et al., 2025): a chain whose every step is drawn by what would follow it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log
from typing import ClassVar

import numpy as np

from search.base import COUNT, Case, SearchSteps, StepwiseSearch, expand
from search.mur import signal
from ttc.errors import BudgetExceeded
from ttc.protocols import Expand, Need, Release
from ttc.tree.branch import Branch

ROUNDS = 20
"""The most rounds of k-means; a few steps stand still after two or three."""


@dataclass(frozen=True)
class PhiDecoding(StepwiseSearch):
    """One chain of at most `max_steps` steps, then up to `finish_tokens` tokens to its end.

    For each step, `beam_width` candidates are sampled, and one more step after each of them, the
    foresight. A candidate is drawn with the mean of two probabilities: the softmax of its
    foresight's mean log-probability, and the softmax of how many foresights are in the cluster of
    its own. Clusters are those of k-means over TF-IDF vectors, `clusters` of them.
    """

    limits: ClassVar = {"clusters": COUNT, "finish_tokens": COUNT}

    beam_width: int = 4
    clusters: int = 2
    step_tokens: int = 256
    max_steps: int = 20
    delimiter: str | None = "\n\n"
    finish_tokens: int = 256

    @property
    def needs_verifier(self) -> bool:
        return False

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("logprobs",)

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step, chain = case.step(self.step_tokens, self.delimiter), root
        for _ in range(self.max_steps):
            candidates: list[Branch] = []
            following: list[Branch] = []
            with suppress(BudgetExceeded):  # what there is by then is drawn from
                candidates += yield from expand([chain], self.beam_width, step, self.sampling)
                going = [branch for branch in candidates if not branch.finished]
                following += yield Expand(going, 1, step, self.sampling)
            if not candidates:
                return [chain] if chain is not root else []
            chosen = self.drawn(candidates, following, case.rng)
            yield Release([chain, *following, *(b for b in candidates if b is not chosen)])
            chain = chosen
            if chain.finished:
                return [chain]
        end: list[Branch] = yield Expand([chain], 1, case.answer(self.finish_tokens), self.sampling)
        yield Release([chain])
        return end

    def drawn(
        self, candidates: Sequence[Branch], following: Sequence[Branch], rng: np.random.Generator
    ) -> Branch:
        """The candidate that goes on. One that has ended is its own foresight."""
        after = {branch.parent: branch for branch in following}
        foresights = [after.get(branch, branch) for branch in candidates]
        labels = clusters([branch.steps[-1] for branch in foresights], self.clusters, rng)
        sizes = [labels.count(label) for label in labels]
        likely = softmax([signal(branch) for branch in foresights])
        chances = (likely + softmax(sizes)) / 2
        return candidates[int(rng.choice(len(candidates), p=chances))]


def softmax(values: Sequence[float]) -> np.ndarray:
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
