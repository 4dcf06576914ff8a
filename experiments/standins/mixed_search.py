"""Searches whose requests are all of other kinds, as a user's may be."""

from __future__ import annotations

from dataclasses import dataclass

from search import Append, Case, Expand, Handoff, Rate, Release, Search, SearchSteps, Step, Vary
from ttc import Branch, Sampling


@dataclass(frozen=True)
class Mixed(Search):
    """Steps of other lengths, samplings, delimiters, widths and statistics in each request, by the
    problem's own numbers."""

    def run(self, root: Branch, case: Case) -> SearchSteps:
        going = [root]
        for _ in range(int(case.rng.integers(1, 4))):
            step, sampling = _step(case)
            if len(case.models) > 1:
                going = yield Handoff(going, str(case.rng.choice(case.models)))
            counts = [int(case.rng.integers(0, 4)) for _ in going]
            children = yield Expand(going, counts, step, sampling)
            yield Release(going)
            if not children:
                return []
            yield Rate(children)
            going = [branch for branch in children if not branch.finished][:3]
            if not going:
                return list(children)
            yield Release([branch for branch in children if branch not in going])
        return going


@dataclass(frozen=True)
class MixedWords(Search):
    """Goes on from any of its branches, old ones too, by steps, words, turns and other prompts."""

    puts_words = True

    def run(self, root: Branch, case: Case) -> SearchSteps:
        pool, rng = [root], case.rng
        for _ in range(int(rng.integers(3, 7))):
            going = [pool[place] for place in rng.permutation(len(pool))[:3]]
            kind = rng.integers(5)
            if kind == 0:
                new = yield Append(going, "ab", turn=bool(rng.integers(2)))
            elif kind == 1:
                new = yield Vary(root, 2, hints=("a", "bc"))
            else:
                going = [branch for branch in going if not branch.finished]
                counts = [int(rng.integers(0, 3)) for _ in going]
                new = yield Expand(going, counts, *_step(case))
            if new and rng.integers(2):
                yield Rate(new)
            pool += new
            gone = [branch for branch in pool[1:] if rng.random() < 0.3]
            yield Release(gone)
            pool = [branch for branch in pool if branch not in gone]
        return [branch for branch in pool if branch.generated]


def _step(case: Case) -> tuple[Step, Sampling]:
    step = Step(
        int(case.rng.integers(1, 7)),
        delimiter=(None, "a", "b")[int(case.rng.integers(3))],
        end=case.end,
        statistics=bool(case.rng.integers(2)),
    )
    sampling = Sampling(float(case.rng.choice([0.0, 0.7, 1.3])), top_k=int(case.rng.choice([0, 5])))
    return step, sampling
