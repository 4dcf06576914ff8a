"""The benchmark of many servers: nothing is lost or counted twice, and the clock is virtual."""

from __future__ import annotations

import pytest

from experiments.lab.bench.scale import (
    SLOTS,
    DrawnBackend,
    Length,
    Servers,
    measure,
    measure_http,
    searches,
)
from search import BestOfN, solve
from search.admission import ProblemAdmission
from ttc import Problem
from ttc.tree.branch import MOST_ROWS

TIMES = ("cpu_s", "wall_s", "us_per_token", "us_per_request", "memory_mib")


@pytest.mark.parametrize("name", ["best of 8", "beam search, 2 x 4"])
def test_every_problem_is_solved_and_two_runs_are_alike(name: str) -> None:
    search = searches(8, 16)[name]
    first, again = measure(search, 20, 2), measure(search, 20, 2)
    assert (first["problems"], first["failed"]) == (20, 0)
    assert first["requests"] >= 20 * 8 and first["tokens"] >= first["requests"] // 4
    assert 0 < first["slots_busy"] <= 1 and first["virtual_s"] > 0
    assert {k: v for k, v in first.items() if k not in TIMES} == {
        k: v for k, v in again.items() if k not in TIMES
    }


def test_usage_is_what_the_servers_have_written() -> None:
    servers = Servers(2)
    problems = [Problem(f"q{i}", f"p{i}") for i in range(5)]
    results = solve(
        BestOfN(n=4, max_tokens=8),
        problem=problems,
        engine=DrawnBackend(servers),
        verifier=Length(),
    )
    assert servers.requests == 5 * 4
    assert all(len(result.branches) == 4 for result in results)
    branches = [branch for result in results for branch in result.branches]
    # the end of a sequence is put after what a server has written
    written = sum(len(b.tokens) - b.prompt_length - (b.finish_reason == "eos") for b in branches)
    assert written == sum(result.usage.generated_tokens for result in results)


@pytest.mark.slow
def test_as_many_branches_grow_as_the_servers_answer_at_once() -> None:
    many = DrawnBackend(Servers(100))
    assert ProblemAdmission.of(many).max_rows == 100 * SLOTS > MOST_ROWS
    assert ProblemAdmission.of(DrawnBackend(Servers(1))).max_rows == MOST_ROWS
    row = measure(BestOfN(n=64, max_tokens=8), 60, 100)
    assert row["requests"] == 60 * 64 and MOST_ROWS < row["most_requests_at_once"] <= 100 * SLOTS


def test_a_request_over_http_is_counted() -> None:
    http = measure_http(20, 4)
    assert http["requests"] == 20 and http["cpu_s"] > 0
