"""What policies move and keep, by hand on numbers that are easy to divide."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from ttc.cost_model.device_profile import RUN, DeviceProfile, LinkProfile
from ttc.cost_model.policies import (
    CAPTURE_TOKENS,
    MINI_BATCH_TOKENS,
    POLICIES,
    Cache,
    Steps,
    StreamedRead,
    capture_times,
)
from ttc.cost_model.unit import Unit

# A token takes 16 bytes of KV in a layer, and 4 bytes of activations.
BLOCK = Unit(
    name="b",
    param_bytes=1000,
    multiplied=500,
    hidden=2,
    kv_elements=8,
    score_elements=8,
    is_block=True,
)
RATES = DeviceProfile(
    name="d",
    bandwidth=100,
    flops={1: 50, MINI_BATCH_TOKENS: 800},
    block_overhead_s=3,
    pass_overhead_s=7,
    piece_s=0.5,
)
LINK = LinkProfile(to_device_bandwidth=10, to_host_bandwidth=10)
SEARCH = Steps(prompt_tokens=10, output_tokens=12, branches=1, step_tokens=4)
READ = StreamedRead(0, shared_tokens=10, own_tokens=4, shared_pieces=1, own_pieces=1)
# 1,000 products at 50 a second; 17 tokens attended at 16 each, 272 at 50; two pieces. A pass's
# overhead is no layer's.
FORWARD_S = 20 + 272 / 50 + 3 + 2 * 0.5


def cache_of(search: Steps = SEARCH, weight_bytes: int = 0, layers: int = 2) -> Cache:
    return Cache([BLOCK] * layers, search, 1, RATES, LINK, weight_bytes)


def test_captures_times_come_from_the_profile() -> None:
    times = capture_times(cache_of(weight_bytes=1000), READ, SEARCH.work_of(1))
    # 2 H multiply-adds for each number of K and V, and a copy of these; a block's calls at most
    assert times.kv_gen.slope == pytest.approx(2 * 2 * 8 / 800 + 2 * 16 / 100)
    assert times.kv_gen.intercept == 3
    assert (times.load_kv.slope, times.load_act.slope) == pytest.approx((16 / 10, 4 / 10))
    assert (times.load_w, times.forward_s) == pytest.approx((1000 / 10, FORWARD_S))


def test_captures_forward_s_is_of_the_rows_that_decode_and_of_kv_that_is_read_in_pieces() -> None:
    # with two queries to a KV head; half as fast with one
    rates = replace(RATES, streamed_flops={1: 25})
    cache = replace(cache_of(), rates=rates)
    more_s = capture_times(cache, READ, SEARCH.work_of(1)).forward_s - FORWARD_S
    assert more_s == pytest.approx(2 * 8 * 10 * (1 / 12.5 - 1 / 50))
    # of what a branch has of its own, pieces hold `RUN` tokens each as they were measured
    longer = replace(READ, own_tokens=2 * RUN + 4, own_pieces=2)
    longer_s = capture_times(cache, longer, SEARCH.work_of(1)).forward_s - FORWARD_S - more_s
    assert longer_s == pytest.approx(0.5 + 2 * 8 * 4 * (1 / 12.5 - 1 / 50))
    # of three branches each has pieces of its own
    three = capture_times(cache_of(), READ, replace(SEARCH, branches=3).work_of(3)).forward_s
    alone = capture_times(
        cache_of(), replace(READ, own_pieces=0), replace(SEARCH, branches=3).work_of(3)
    ).forward_s
    assert three - alone == pytest.approx(3 * 0.5)


def test_capture_keeps_kv_alone_where_it_would_lose_by_its_own_model() -> None:
    """14 tokens take 22.4 as KV blocks, and what else a layer computes takes 29.4."""
    for room in (inf, 1000):
        traffic = POLICIES["capture"].traffic(cache_of(), room)
        assert [(read.load_bytes, read.generate_s) for read in traffic.reads if read] == [
            (14 * 16, 0)
        ] * 2


def test_capture_keeps_activations_while_weights_cross() -> None:
    """Weights take 50, in which 14 tokens are generated in 5.04 and a call; on the device nothing
    of them crosses. Little room there takes them in parts: 3 x 14 x 16 bytes through 80."""
    near = POLICIES["capture"].traffic(cache_of(weight_bytes=500), inf).reads[0]
    assert near is not None and near.load_bytes == 0
    assert (near.generate_s, near.fetches) == (pytest.approx(14 * 0.36 + 3), 1)
    tails = SEARCH.step_tokens * (16 + 4) * 2
    far = POLICIES["capture"].traffic(cache_of(weight_bytes=500), tails).reads[0]
    assert far is not None and far.load_bytes == 14 * 4
    assert (far.generate_s, far.fetches) == (pytest.approx(14 * 0.36 + 9 * 3), 9)


def test_capture_balances_what_crosses_and_what_is_computed() -> None:
    """Of a prompt of 1,000 tokens, with the device full: T_PCIe 1.6 KV + 0.4 ACT is T_Computation,
    but for a token."""
    search = replace(SEARCH, prompt_tokens=1000)
    # generating takes 2 and a copy 0.32, a call 3
    slow = replace(cache_of(search), rates=replace(RATES, flops={1: 2000, MINI_BATCH_TOKENS: 16}))
    tails = search.step_tokens * (16 + 4) * 2
    read = POLICIES["capture"].traffic(slow, tails).reads[0]
    assert read is not None
    assert read.fetches == 603  # 3 x 1,004 x 16 bytes through 80
    act = (read.generate_s - 603 * 3) / 2.32
    kv = 1004 - act
    assert read.load_bytes == pytest.approx(16 * kv + 4 * act) and 0 < act < 1004
    pieces = 1000 // CAPTURE_TOKENS + 1 + 1
    forward_s = (
        max(1000 / 2000, 1000 / 100) + max(16 * 1007 / 2000, 1007 * 16 / 100) + 3 + pieces * 0.5
    )
    assert 1.6 * kv + 0.4 * act == pytest.approx(forward_s + 3 + 2.32 * act, abs=1.6 + 2.32)


def test_from_the_third_group_on_the_room_beside_a_group_takes_what_comes_ahead() -> None:
    """Six branches of 4 tokens on a prompt of 10: two of them grow to 8 tokens each beside it, 26
    tokens, and there is room for 3 more. The first group is there, so 16 of 34 tokens come, 3 of
    them are there as well."""
    search = Steps(prompt_tokens=10, output_tokens=12, branches=6, step_tokens=4)
    traffic = POLICIES["beam_groups"].traffic(cache_of(search, layers=1), 29 * 16)
    assert (traffic.rounds, traffic.step_bytes, traffic.ahead_bytes) == (3, (16 - 3) * 16, 3 * 16)
    two = POLICIES["beam_groups"].traffic(cache_of(replace(search, branches=4), layers=1), 29 * 16)
    # the second is the last
    assert (two.rounds, two.step_bytes, two.ahead_bytes) == (2, (8 - 3) * 16, 0)


def test_beside_a_group_no_more_is_kept_than_a_group_has_of_its_own() -> None:
    """One branch grows to 8 tokens beside the prompt's 10, with room for 7 more; but the group
    before it leaves 4 tokens of its own, as the prompt is there anyway."""
    search = Steps(prompt_tokens=10, output_tokens=12, branches=6, step_tokens=4)
    traffic = POLICIES["beam_groups"].traffic(cache_of(search, layers=1), 25 * 16)
    assert (traffic.rounds, traffic.step_bytes) == (6, (5 * 4 - 4) * 16)
    assert traffic.ahead_bytes == (6 - 2) * 4 * 16
