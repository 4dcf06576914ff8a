"""The benchmark of servers: both sides run the same searches, and the table shows both."""

from __future__ import annotations

import os

import pytest

from experiments.lab.bench.remote import measured, process_s, sums
from search import BestOfN, Greedy
from tests.helpers.models import small
from tests.helpers.servers import ServedModel, serving
from tests.helpers.tokenizers import EOS, Ascii
from ttc import Endpoint, Engine, RemoteBackend


def test_greedy_answers_are_the_same_and_the_figures_add_up() -> None:
    engine = Engine(small(context=1024, eos=EOS), Ascii())
    searches = {"greedy": Greedy(max_tokens=5), "best-of-2": BestOfN(n=2, max_tokens=4)}
    with serving(ServedModel()) as url:
        remote = RemoteBackend(Endpoint(url, retries=0), Ascii())
        clocks = {"server": lambda: process_s(None), "engine": lambda: process_s(os.getpid())}
        rows = measured({"server": remote, "engine": engine}, sums(3), searches, clocks)
        remote.close()
    greedy, sampled = rows
    assert [row["problems"] for row in rows] == [3, 3]
    for row in rows:
        for where in ("server", "engine"):
            own = row[where]
            assert own["failed"] == 0 and own["tokens_per_s"] == pytest.approx(
                own["generated_tokens"] / own["seconds"]
            )
    assert greedy["difference"]["same_texts"] == 3 and greedy["difference"]["mean"] == 0
    assert greedy["server"]["generated_tokens"] == greedy["engine"]["generated_tokens"] <= 15
    assert sampled["engine"]["generated_tokens"] <= 3 * 2 * 4
    assert greedy["server"]["tokens_per_cpu_s"] is None and greedy["engine"]["tokens_per_cpu_s"] > 0
