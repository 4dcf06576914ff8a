"""What is measured of a server under its clients."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from experiments.lab.bench.serve import (
    BEAMS,
    KINDS,
    SAMPLES,
    Load,
    body,
    figures,
    percentile,
)
from tests.helpers.own_server import running


def test_a_load_of_each_kind_is_answered_and_counted() -> None:
    with running() as found:
        load = Load(found.url, True, itertools.count(1), "tiny")
        seconds = asyncio.run(load.run(2 * len(KINDS), 2))
        row = figures(load, 2 * len(KINDS), seconds)
        found.wait_until_counted(4, search="beam_search", status=200)
        found.wait_until_free()
    assert 0 < row["first_p50_s"] <= row["first_p99_s"] <= seconds
    assert row["tokens"] >= 4 * (SAMPLES + BEAMS) and set(load.shares) == {0, 4}
    assert 0.5 <= row["fairness"] <= 1


def test_fairness_and_percentiles_are_those_of_their_definitions() -> None:
    load = Load("", False, itertools.count(1))
    load.shares, load.first_s, load.gaps_s, load.tokens = {0: 30, 4: 10}, [0.1, 0.3], [], 80
    row = figures(load, 8, 4.0)
    assert row["fairness"] == pytest.approx(40**2 / (2 * 1000)) and row["least_share"] == 0.5
    assert (row["tokens_per_s"], row["first_p50_s"]) == (20, pytest.approx(0.2))
    assert math.isnan(row["gap_p99_s"]) and percentile([2.0], 99) == 2.0


def test_a_server_without_searches_is_asked_for_as_many_samples() -> None:
    own, other = (body("search", 1, "m", searches) for searches in (True, False))
    assert own["model"] == "m+beam_search" and own["messages"] == other["messages"]
    search = own["search"]
    rows = search["beam_size"] * search["beam_width"]
    assert other["n"] == rows and other["max_tokens"] == search["step_tokens"] * search["max_steps"]
