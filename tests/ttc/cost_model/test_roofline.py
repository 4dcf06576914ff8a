"""The roofline: Eqs. 4.8-4.15 by hand on numbers that are easy to divide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.roofline import m_hat, roofline_time, t_attn, t_comm, t_proj
from ttc.cost_model.unit import Pass, Unit

# A pass of one row reads 1000 bytes of weights and computes 1000 operations; 10 bytes of KV per
# token, 20 operations.
BLOCK = Unit(
    name="b",
    param_bytes=1000,
    multiplied=500,
    hidden=8,
    kv_elements=5,
    score_elements=10,
    is_block=True,
)
SLOW_MEMORY = DeviceProfile(name="d", bandwidth=100, flops={1: 1000})
SLOW_PRODUCTS = DeviceProfile(name="d", bandwidth=1000, flops={1: 100})


def test_the_tighter_limit_counts() -> None:
    assert t_proj([BLOCK], SLOW_MEMORY, Pass(1)) == 1000 / 100
    assert t_proj([BLOCK], SLOW_PRODUCTS, Pass(1)) == 1000 / 100
    assert t_proj([BLOCK, BLOCK], SLOW_PRODUCTS, Pass(3)) == 2 * 3 * 1000 / 100
    at_50 = Pass(1, own_tokens=49)
    assert t_attn([BLOCK], SLOW_MEMORY, at_50) == 50 * 10 / 100
    assert t_attn([BLOCK], SLOW_PRODUCTS, at_50) == 50 * 20 / 100


def test_what_is_shared_is_attended_by_its_rows_together_and_the_rest_by_each_row_alone() -> None:
    """Eight branches on two prefixes of 15 tokens, with 4 of their own and the new one: 4 rows
    attend a prefix together (8 x 15 x 20 operations), each row its 5 tokens alone (8 x 5 x 20)."""
    work = Pass(8, own_tokens=4, shared_tokens=15, prefixes=2)
    device = replace(
        SLOW_PRODUCTS, bandwidth=1e9, flops={1: 1e9}, attention_flops={1: 10, 4: 40, 8: 100}
    )
    assert t_attn([BLOCK], device, work) == pytest.approx(2400 / 40 + 800 / 10)
    # with four queries to a KV head, twice as many read the same keys: 8 for the prefix and 2 for
    # what is a row's own
    wide = replace(BLOCK, score_elements=20)
    assert t_attn([wide], device, work) == pytest.approx(4800 / 100 + 1600 / 20)
    # two new tokens of a branch attend what it has together: 2 x (5 + 6) x 20 operations for each
    two = Pass(4, new_tokens=2, own_tokens=4, shared_tokens=15, prefixes=2)
    assert t_attn([BLOCK], device, two) == pytest.approx(2400 / 40 + 4 * 11 * 20 / 20)


def test_with_one_rate_for_all_as_in_the_paper_attention_runs_at_that_of_all_rows() -> None:
    """Eq. 4.13's P is that of the pass: F_attn = 8 x 20 x 20 operations."""
    device = replace(SLOW_PRODUCTS, bandwidth=1e9, flops={1: 10, 8: 100})
    assert t_attn([BLOCK], device, Pass(8, own_tokens=19)) == pytest.approx(3200 / 100)
    assert t_attn([BLOCK], device, Pass(8, own_tokens=4, shared_tokens=15)) == pytest.approx(
        3200 / 100
    )


def test_weights_are_read_once_for_all_rows() -> None:
    assert t_proj([BLOCK], SLOW_MEMORY, Pass(8)) == t_proj([BLOCK], SLOW_MEMORY, Pass(1))


def test_efficiencies_divide_the_rates() -> None:
    half = replace(SLOW_MEMORY, eta_m=0.5)
    slower = replace(SLOW_PRODUCTS, eta_c=0.25)
    for time in (t_proj, t_attn):
        assert time([BLOCK], half, Pass(1)) == 2 * time([BLOCK], SLOW_MEMORY, Pass(1))
        assert time([BLOCK], slower, Pass(1)) == 4 * time([BLOCK], SLOW_PRODUCTS, Pass(1))


def test_bandwidth_of_kv_is_blended_with_that_of_the_cache() -> None:
    cached = replace(SLOW_MEMORY, l3_bytes=300, l3_bandwidth=500)
    assert m_hat(cached, 300) == m_hat(cached, 0) == 500
    assert m_hat(cached, 100) == 500  # alpha is at most 1: 3 x 500 - 2 x 100 would be 1300
    assert m_hat(cached, 1200) == 0.25 * 500 + 0.75 * 100
    assert m_hat(SLOW_MEMORY, 300) == 100


def test_a_stage_is_projections_attention_and_overhead() -> None:
    embedding = Unit(name="e", param_bytes=1000, multiplied=0, hidden=8)
    device = replace(SLOW_MEMORY, block_overhead_s=3, pass_overhead_s=7)
    expected = (16 + 2 * 1000) / 100 + 2 * 10 / 100 + 2 * 3 + 7
    assert roofline_time([embedding, BLOCK, BLOCK], device, Pass(1)) == pytest.approx(expected)
    assert roofline_time([], device, Pass(1)) == 0


def test_what_rows_cost_in_a_block_grows_with_their_heads() -> None:
    """10 numbers of queries, keys and values: 5 of queries, 5 of keys and values."""
    device = replace(SLOW_MEMORY, block_overheads={1: 3, 4: 5}, head_s={1: 0, 4: 0.5, 16: 0.25})
    plain = replace(SLOW_MEMORY, block_overhead_s=0)
    for rows, expected in ((1, 3), (2, 15**0.5 + 2 * 10 * 0.25), (8, 5 + 8 * 10 * 0.375)):
        added = roofline_time([BLOCK], device, Pass(rows)) - roofline_time(
            [BLOCK], plain, Pass(rows)
        )
        assert added == pytest.approx(expected)
    recurrent = replace(BLOCK, kv_elements=0, score_elements=0)
    assert roofline_time([recurrent], device, Pass(16)) == pytest.approx(16 * 1000 / 1000 + 5)


def test_the_states_of_all_rows_cross_the_link() -> None:
    link = LinkProfile(to_device_bandwidth=32, to_host_bandwidth=1, to_device_latency_s=2)
    assert t_comm(BLOCK, link, Pass(4)) == 2 + 4 * 8 * 2 / 32
