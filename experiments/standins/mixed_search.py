"""A search whose requests are all of other kinds, as a user's may be."""

from __future__ import annotations

from dataclasses import dataclass

from search import Case, Expand, Handoff, Rate, Release, Search, SearchSteps
from ttc import Branch, Sampling, Step


@dataclass(frozen=True)
class Mixed(Search):
    """Steps of other lengths, samplings, delimiters, widths and statistics in each request, by the
    problem's own numbers."""

    def run(self, root: Branch, case: Case) -> SearchSteps:
        going = [root]
        for _ in range(int(case.rng.integers(1, 4))):
            step = Step(
                int(case.rng.integers(1, 7)),
                delimiter=(None, "a", "b")[int(case.rng.integers(3))],
                end=case.end,
                statistics=bool(case.rng.integers(2)),
            )
            sampling = Sampling(
                float(case.rng.choice([0.0, 0.7, 1.3])), top_k=int(case.rng.choice([0, 5]))
            )
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
