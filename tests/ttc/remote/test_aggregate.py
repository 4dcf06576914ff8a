"""A model on a server reads its own answers as one here does."""

from __future__ import annotations

from typing import Any

import pytest

from search import Aggregate, solve
from tests.helpers.engines import GREEDY
from tests.helpers.models import small
from tests.helpers.servers import ServedModel, connected
from tests.helpers.tokenizers import EOS, Ascii
from ttc.engine import Engine


@pytest.mark.parametrize("mode", ["write", "select"])
def test_on_a_server_it_reads_what_it_reads_here(mode: Any) -> None:
    search = Aggregate(mode=mode, n=2, k=2, rounds=2, max_tokens=8, temperature=GREEDY.temperature)
    here = solve(search, problem="1 + 1", engine=Engine(small(context=1024, eos=EOS), Ascii()))
    with connected(ServedModel()) as backend:
        there = solve(search, problem="1 + 1", engine=backend)
    assert there.error is None
    rows = [[(b.path, b.text, b.tokens) for b in result.branches] for result in (here, there)]
    assert rows[0] == rows[1] and there.answer == here.answer
