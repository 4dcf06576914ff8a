"""A budget that is too small is answered with the least that is needed, which grows as the search
does, and leads to a budget that is enough."""

from __future__ import annotations

import re
from itertools import product

import pytest

from search import BeamSearch, BestOfN, Search, SelfConsistency, solve
from tests.helpers.engines import make_engine
from tests.helpers.searches import Costly
from tests.helpers.tiers import some_quick
from ttc import BeamGroups, Capture, Headwise, Layerwise, OutOfMemory, Paged, Resident
from ttc.residency.base import Residency

SEARCHES = [
    BestOfN(n=4, max_tokens=60),
    BeamSearch(beam_size=2, beam_width=2, step_tokens=10, max_steps=4),
    SelfConsistency(n=8, max_tokens=60),
]
POLICIES = [Resident, Layerwise, BeamGroups, Paged, Headwise, Capture]


@pytest.mark.filterwarnings("ignore:memory=capture")
@pytest.mark.parametrize(
    ("policy", "search"), some_quick(list(product(POLICIES, SEARCHES)), [(Paged, SEARCHES[0])])
)
def test_each_refusal_says_that_it_is_the_least(policy: type[Residency], search: Search) -> None:
    budget = 1000
    for _ in range(12):
        engine = make_engine(context=200, memory=policy(budget / 2**30))
        try:
            solve(search, problem="1 + 1", engine=engine, verifier=Costly(0))
            return
        except OutOfMemory as refused:
            said = str(refused)
        asked = re.search(r"a budget of ([\d,]+) bytes .* at least is needed", said)
        assert asked is not None and "experiments.plan" in said, said
        least = int(asked[1].replace(",", ""))
        assert least > budget
        budget = least
    raise AssertionError("refused again and again")
