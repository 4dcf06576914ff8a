"""DeepConf (Fu et al., 2025): samples vote with the model's own confidence, and unsure ones are
left out or stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Literal

import numpy as np

from search.base import Case, Search, SearchSteps, expand
from search.selection import (
    C,
    Candidate,
    Measure,
    Winner,
    confidence_vote,
    samples_of,
    trace_confidence,
)
from ttc.backend import Need
from ttc.branch import Branch
from ttc.checks import PositiveInt, Share
from ttc.errors import BudgetExceeded
from ttc.protocols import Extract, Release
from ttc.results import comparable


@dataclass(frozen=True)
class DeepConf(Search):
    """At most `n` samples, whose votes weigh the model's confidence.

    Confidence is that of `search.selection.trace_confidence`.

    mode: "offline", all `n` are finished, and the most confident share `keep` of them votes; or
        "online", the first `warmup` samples are finished, and the (1 - keep) quantile of their
        lowest groups of `window` tokens becomes a threshold. A later sample is dropped once a full
        window lies below it, and only samples whose lowest group reaches it vote.
    keep: the share of samples that vote. measure: what makes one confidence of a sample's tokens,
        offline.
    window: tokens of a group. The published one is for chains of tens of thousands of tokens; it
        must be shorter than the answers. An eighth of `max_tokens` keeps its proportion.
    warmup: samples that are finished first. block: later ones are made so many at a time.
    consensus: no more are made once an answer has this share of the votes' weight; None always
        makes all `n`, as the authors' program does (facebookresearch/deepconf), not their paper.
    least_votes: as long as there are fewer votes, no consensus counts (with keep=0.1 two of sixteen
        would agree by chance; 4 is the fewest that make a majority 95% sure).
    step_tokens: later samples grow by so many at a time, so that one is stopped at most
        `step_tokens` - 1 tokens after its window fell below.

    Tokens: n L.
    Use it where: samples are long, and the model knows when it is lost.
    """

    mode: Literal["offline", "online"] = "offline"
    n: int = 32
    max_tokens: int = 256
    keep: Share = 0.9
    measure: Measure = "lowest"
    window: PositiveInt = 2048
    warmup: PositiveInt = 16
    block: PositiveInt = 4
    consensus: Share | None = 0.95
    least_votes: PositiveInt = 4
    step_tokens: int = 16

    needs_verifier = False
    needs: ClassVar[tuple[Need, ...]] = ("top_logprobs",)

    def refusals(self) -> Mapping[str, object]:
        online = self.mode == "online"
        return {
            f"window={self.window} is longer than max_tokens={self.max_tokens}, so that no window "
            "is ever full and no sample stopped; give a shorter window, as "
            f"window={max(1, self.max_tokens // 8)}": online and self.window > self.max_tokens,
            f"measure={self.measure} is for mode=offline; mode=online goes by the lowest group": (
                online and self.measure != "lowest"
            ),
        }

    def run(self, root: Branch, case: Case) -> SearchSteps:
        first = self.n if self.mode == "offline" else min(self.warmup, self.n)
        step = case.answer(self.max_tokens, statistics=True)
        samples = yield from expand([root], first, step, self.sampling)
        if self.mode == "offline":
            return samples
        lowest = [self.lowest(sample) for sample in samples]
        threshold = comparable(float(np.quantile(lowest, 1 - self.keep)))
        sure = yield from self.reaching(samples, threshold)
        with suppress(BudgetExceeded):  # samples that are cut off have no vote
            for sampled in range(first, self.n, self.block):
                if self.agreed(sure, case.extract):
                    break
                count = min(self.block, self.n - sampled)
                more = yield from self.watched(root, count, threshold, case)
                sure += yield from self.reaching(more, threshold)
        return sure

    def watched(self, root: Branch, count: int, threshold: float, case: Case) -> SearchSteps:
        """`count` more samples in the order of their index, those that were stopped left out."""
        done = list[Branch]()
        growing = [root]
        width = count
        longest = self.max_tokens + case.thinking_tokens
        for length in range(0, longest, self.step_tokens):
            tokens = min(self.step_tokens, longest - length)
            step = case.part(tokens, statistics=True)
            children = yield from expand(growing, width, step, self.sampling)
            if length:
                yield Release(growing)
            unsure = [child for child in children if self.is_unsure(child, threshold)]
            yield Release(unsure)
            sure = [child for child in children if child not in unsure]
            is_last = length + tokens == longest
            done += [child for child in sure if child.finished or is_last]
            growing = [child for child in sure if child not in done]
            if not growing:
                break
            width = 1
        return sorted(done, key=lambda sample: sample.path)

    def reaching(self, samples: Sequence[Branch], threshold: float) -> SearchSteps:
        """The samples whose lowest group reaches the threshold; the others are let go."""
        sure = [sample for sample in samples if comparable(self.lowest(sample)) >= threshold]
        yield Release([sample for sample in samples if sample not in sure])
        return sure

    def is_unsure(self, sample: Branch, threshold: float) -> bool:
        full = len(confidences(sample)) >= self.window
        return full and comparable(self.lowest(sample)) < threshold

    def lowest(self, sample: Candidate) -> float:
        return trace_confidence(confidences(sample), "lowest", self.window)

    def agreed(self, samples: Sequence[Branch], extract: Extract) -> bool:
        """Whether one answer has the share `consensus` of enough votes' weight."""
        votes = [sample.vote for sample in samples_of(samples, extract)]
        if self.consensus is None or sum(v is not None for v in votes) < self.least_votes:
            return False
        totals: dict[str, float] = defaultdict(float)
        for vote, sample in zip(votes, samples, strict=True):
            if vote is not None:
                totals[vote] += self.lowest(sample)
        return max(totals.values()) >= self.consensus * sum(totals.values())

    def choose(self, candidates: Sequence[C], extract: Extract) -> Winner[C]:
        samples = samples_of(candidates, extract, [confidences(c) for c in candidates])
        keep = self.keep if self.mode == "offline" else 1.0  # online, the others are gone already
        place = confidence_vote(samples, keep, self.measure, self.window)
        if place is None:
            return (candidates[0], None) if candidates else (None, None)
        return candidates[place], samples[place].answer


def confidences(sample: Candidate) -> list[float]:
    return [-value for value in sample.top_k_logprobs if isfinite(value)]
