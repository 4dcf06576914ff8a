"""The KV probe: buckets, arithmetic, and that it leaves nothing behind."""

from __future__ import annotations

import math

import pytest

from experiments.lab.paper.rksc.kv_probe import KVProbe, KVTimes
from tests.helpers.engines import make_engine
from ttc import InvalidInput, Paged


def test_a_bucket_is_measured_once() -> None:
    probe = KVProbe(make_engine(4, 256), suffix_tokens=4, repeats=1)
    first = probe.times(70, 3)
    assert (first.tokens, first.branches, first.suffix_tokens) == (70, 3, 4)
    assert min(first.full_s, first.prefix_s, first.suffix_s) > 0
    assert probe.times(100, 3) is first
    assert probe.times(130, 3) is not first and probe.times(70, 2) is not first
    assert probe.shared.kv_bytes() == probe.alone.kv_bytes() == 0


def test_every_branch_computes_all_of_its_prompt_and_shared_suffixes_only_themselves() -> None:
    probe, rows = KVProbe(make_engine(4, 256), suffix_tokens=4, repeats=1), []
    for engine in (probe.shared, probe.alone):
        forward = engine.runner.forward
        engine.runner.forward = lambda tokens, *more, _forward=forward: (
            rows.append(len(tokens)),
            _forward(tokens, *more),
        )[1]  # type: ignore[method-assign]
    probe.times(70, 3)
    full, prefix, again, suffixes = 3 * (70 + 5), 69, 69, 3 * 5
    assert rows == [full, prefix, again, suffixes]


def test_it_measures_under_the_engines_memory_policy() -> None:
    engine = make_engine(4, 256, memory=Paged(budget_gib=0.001, block_tokens=16))
    probe = KVProbe(engine, suffix_tokens=4, repeats=1)
    for own in (probe.shared, probe.alone):
        assert isinstance(own.residency, Paged) and own.residency.budget_gib == 0.001
        assert own.memory is not engine.memory
    assert probe.times(70, 2).full_s > 0
    assert probe.shared.kv_bytes() == probe.alone.kv_bytes() == 0


def test_what_it_says() -> None:
    gain = KVTimes(1024, 8, 16, full_s=8.0, prefix_s=1.0, suffix_s=0.4)
    assert gain.beneficial and gain.net_s == pytest.approx(6.6)
    assert gain.break_even_branches == pytest.approx(1.0 / 0.95)
    loss = KVTimes(64, 8, 16, full_s=0.3, prefix_s=0.1, suffix_s=0.35)
    assert not loss.beneficial and loss.net_s < 0
    assert math.isinf(loss.break_even_branches)


def test_bad_sizes_are_named() -> None:
    with pytest.raises(InvalidInput, match="repeats=0"):
        KVProbe(make_engine(4, 256), repeats=0)
    with pytest.raises(InvalidInput, match="not 1 and 8"):
        KVProbe(make_engine(4, 256)).times(1, 8)
    with pytest.raises(InvalidInput, match="context of 256"):
        KVProbe(make_engine(4, 256)).times(250, 8)
