"""CAPTURE's allocation, Eq. 5's ratio and mini-batches, against what trying everything finds."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ttc.cost_model.capture import (
    NEAR_LEAST,
    CaptureTimes,
    Line,
    act_gpu_blocks,
    allocation,
    fit_line,
    hybrid_cache_allocation,
    imbalance,
    mini_batches,
    next_is_act,
)
from ttc.errors import InvalidInput

slopes = st.floats(0.01, 5)
paper_times = st.builds(
    CaptureTimes,
    kv_gen=st.builds(Line, slopes),
    load_kv=st.builds(Line, slopes),
    load_w=st.floats(0, 40),
)


def gap(times: CaptureTimes, act_gpu: int, act: int, kv: int) -> float:
    """|T_PCIe - T_Computation| of Eqs. 2 to 4, written out."""
    pcie = times.load_w + times.load_kv.slope * kv + times.load_act.slope * act
    return abs(pcie - times.forward_s - times.kv_gen.slope * (act + act_gpu))


@given(times=paper_times, act_gpu=st.integers(0, 20), m_host=st.integers(0, 80))
def test_algorithm_1_leaves_the_least_gap_that_any_filling_of_the_host_leaves(
    times: CaptureTimes, act_gpu: int, m_host: int
) -> None:
    act, kv = hybrid_cache_allocation(times, act_gpu, m_host)
    least = min(gap(times, act_gpu, n, m_host - n) for n in range(m_host + 1))
    assert gap(times, act_gpu, act, kv) <= least + 2 * a_block_more_or_less(times)


crossing_times = st.builds(
    lambda times, share, forward_s: replace(
        times, load_act=Line(share * times.load_kv.slope), forward_s=forward_s
    ),
    times=paper_times,
    share=st.floats(0, 1.2),  # above 1 an ACT block crosses slower than a KV block
    forward_s=st.floats(0, 40),
)


def a_block_more_or_less(times: CaptureTimes) -> float:
    """How far whole blocks may be from the best part of a block."""
    return times.kv_gen.slope + times.load_kv.slope + 1e-6


@given(times=crossing_times, act_gpu=st.integers(0, 20), m_host=st.integers(0, 80))
def test_with_act_blocks_that_cross_no_other_counts_on_the_host_are_faster(
    times: CaptureTimes, act_gpu: int, m_host: int
) -> None:
    act, kv = hybrid_cache_allocation(times, act_gpu, m_host)
    assert act + kv == m_host and act >= 0 and kv >= 0
    least = min(times.layer_s(m_host - n, n, act_gpu) for n in range(m_host + 1))
    assert times.layer_s(kv, act, act_gpu) <= least + a_block_more_or_less(times)


@given(times=crossing_times, room=st.integers(0, 20), blocks=st.integers(1, 40))
def test_no_use_of_the_devices_room_and_of_the_host_is_faster(
    times: CaptureTimes, room: int, blocks: int
) -> None:
    act_gpu, act, kv = allocation(times, room, blocks)
    assert 0 <= act_gpu <= min(room, blocks) and min(act, kv) >= 0 and act_gpu + act + kv == blocks
    least = min(
        times.layer_s(blocks - near - far, far, near)
        for near in range(min(room, blocks) + 1)
        for far in range(blocks - near + 1)
    )
    assert times.layer_s(kv, act, act_gpu) <= least + a_block_more_or_less(times)


@pytest.mark.parametrize(("forward_s", "act"), [(216, 0), (200, 10)])
def test_act_blocks_have_to_gain_what_is_asked_for(forward_s: float, act: int) -> None:
    """80 KV blocks take 240; 222 with 6 of them as ACT blocks, and 210 with 10."""
    times = CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0), forward_s=forward_s)
    assert allocation(times, 80, 80, min_gain=1.1) == (act, 0, 80 - act)
    assert allocation(times, 80, 80).act_gpu == (240 - forward_s) / 4


@given(
    times=crossing_times,
    intercepts=st.tuples(*[st.floats(0, 30)] * 3),
    room=st.integers(0, 20),
    blocks=st.integers(1, 40),
)
def test_whatever_is_allocated_is_no_slower_than_kv_blocks_alone(
    times: CaptureTimes, intercepts: tuple[float, float, float], room: int, blocks: int
) -> None:
    kinds = ("kv_gen", "load_kv", "load_act")
    lines = {
        kind: replace(getattr(times, kind), intercept=at)
        for kind, at in zip(kinds, intercepts, strict=True)
    }
    times = replace(times, **lines)
    act_gpu, act, kv = allocation(times, room, blocks)
    assert act_gpu + act + kv == blocks
    assert times.layer_s(kv, act, act_gpu) <= times.layer_s(blocks, 0, 0)


def test_what_generating_any_block_costs_besides_counts_in_the_budget() -> None:
    """Weights take 12, a KV block 2, regenerating an ACT block 1 and 4 besides."""
    times = CaptureTimes(kv_gen=Line(1.0, 4.0), load_kv=Line(2.0), load_w=12.0)
    # T_budget = 12 - 4: ACT_init 8. The other 30: #ACT + #KV = 30 with #ACT = 2 #KV
    assert hybrid_cache_allocation(times, 0, 38) == (8 + 20, 10)
    assert times.t_pcie(10) == times.t_computation(28) == 32
    # T_budget = 0 - 4: KV_init 2. The other 30 as before
    assert hybrid_cache_allocation(replace(times, load_w=0.0), 0, 32) == (20, 2 + 10)
    # T_budget = 12 - 8 with 4 ACT blocks on the device: ACT_init 4
    assert hybrid_cache_allocation(times, 4, 34) == (4 + 20, 10)
    # on the device as well: 4 + n = 2 (17 - n), so n is 10
    assert act_gpu_blocks(replace(times, load_w=0.0), 17, 17) == 10
    assert act_gpu_blocks(replace(times, load_w=0.0, forward_s=3.0), 17, 17) == 9


@given(act=st.integers(0, 9), kv=st.integers(0, 9), blocks=st.integers(1, 60))
def test_a_request_keeps_the_hosts_ratio_at_every_length(act: int, kv: int, blocks: int) -> None:
    assume(act + kv > 0)
    own = [0, 0]
    for n in range(1, blocks + 1):
        own[0 if next_is_act(*own, act, kv) else 1] += 1
        assert abs(own[0] - n * act / (act + kv)) <= 1


def test_a_tie_goes_to_act() -> None:
    assert next_is_act(0, 0, 1, 1) and next_is_act(6, 2, 3, 1) and next_is_act(5, 2, 3, 1)
    assert not next_is_act(7, 2, 3, 1) and not next_is_act(0, 0, 0, 4)


requests_of = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@given(requests=requests_of, gen=slopes, load=slopes, most=st.integers(12, 24))
def test_every_request_is_in_one_mini_batch_within_its_room_and_about_as_balanced_as_its_first(
    requests: list[tuple[int, int]], gen: float, load: float, most: int
) -> None:
    found = mini_batches(requests, most, Line(gen), Line(load))
    assert sorted(index for batch in found for index in batch) == list(range(len(requests)))
    for batch in found:
        act, kv = (sum(requests[index][kind] for index in batch) for kind in (0, 1))
        assert act + kv <= most
        first = imbalance(*requests[batch[0]], Line(gen), Line(load))
        assert (
            imbalance(act, kv, Line(gen), Line(load)) <= first * NEAR_LEAST * (1 + 1e-6)
            or first == inf
        )


@given(pairs=st.integers(1, 4), long=st.integers(2, 5))
def test_requests_that_complement_each_other_are_put_together(pairs: int, long: int) -> None:
    """Half have ACT blocks, half KV blocks: every mini-batch of two is balanced, the best of all
    partitions."""
    requests = [(long, 1), (1, long)] * pairs
    found = mini_batches(requests, 2 * (long + 1), Line(1.0), Line(1.0))
    assert len(found) == pairs
    assert all(
        sum(requests[i][0] for i in batch) == sum(requests[i][1] for i in batch) for batch in found
    )


@pytest.mark.parametrize(("length", "fewest", "most"), [(512, 0.6, 22), (64, 0.9, 15)])
def test_single_blocks_are_packed_in_the_ratio_of_all_of_them(
    length: int, fewest: float, most: int
) -> None:
    """10,752 tokens of ACT blocks and 103,936 of KV blocks in mini-batches of 8,192. A whole one
    has room for 1.5 ACT blocks of 512 tokens, so those have one each and are smaller; with blocks
    of 64 they are almost full."""
    act, kv = 10_752 // length, 103_936 // length
    found = mini_batches(
        [(length, 0)] * act + [(0, length)] * kv, 8192, Line(1 / act), Line(1 / kv)
    )
    assert len(found) <= most
    for batch in found[:-1]:
        acts = sum(index < act for index in batch)
        assert fewest * 8192 <= len(batch) * length <= 8192
        assert (len(batch) - acts) / acts == pytest.approx(kv / act, rel=0.1)


def test_a_request_larger_than_a_mini_batch_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no mini-batch of 9"):
        mini_batches([(9, 1)], 9, Line(1.0), Line(1.0))


@given(
    slope=slopes, intercept=st.floats(0, 3), ns=st.sets(st.integers(1, 50), min_size=2, max_size=6)
)
def test_a_line_is_found_again_from_its_points(
    slope: float, intercept: float, ns: set[int]
) -> None:
    line = fit_line([(n, intercept + slope * n) for n in ns])
    assert line.slope == pytest.approx(slope, rel=1e-6) and line.intercept == pytest.approx(
        intercept, abs=1e-6
    )
    assert line.r2 == pytest.approx(1) and line(0) == 0
    assert line.blocks_in(line(7)) == pytest.approx(7)
    flat = Line(0.0, 3.0)
    assert [flat.blocks_in(seconds) for seconds in (3.5, 3.0, 2.5)] == [inf, inf, 0.0]


def test_no_line_falls_or_begins_below_zero() -> None:
    assert fit_line([(1, 3.0), (2, 1.0)]) == Line(0.0, 2.0, 0.0)
    assert fit_line([(1, 2.0), (2, 2.0)]) == Line(0.0, 2.0, 1.0)
    steep = fit_line([(1, 0.5), (2, 3.0)])  # 2.5 n - 2
    assert (steep.slope, steep.intercept) == ((0.5 + 2 * 3.0) / (1 + 4), 0.0)


def test_r2_says_how_well_a_line_fits() -> None:
    line = fit_line([(1, 1.0), (2, 3.0), (3, 2.0), (4, 4.0)])
    assert (line.slope, line.intercept, line.r2) == pytest.approx((0.8, 0.5, 0.64))
    line = fit_line([(1, 1.0), (2, 3.0), (3, 2.0), (4, 4.0)], proportional=True)
    assert (line.slope, line.intercept) == pytest.approx((29 / 30, 0))
    with pytest.raises(InvalidInput, match="two numbers"):
        fit_line([(3, 1.0), (3, 2.0)])
