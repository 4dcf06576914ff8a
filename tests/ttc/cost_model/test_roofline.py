"""The roofline: Eqs. 4.8-4.15 by hand on numbers that are easy to divide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.roofline import m_hat, roofline_time, t_attn, t_comm, t_proj
from ttc.cost_model.unit import Pass, Unit

# A pass of one row reads 1000 bytes of weights and computes 1000 operations; 10 bytes of KV per token, 20 operations.
BLOCK = Unit(name="b", param_bytes=1000, multiplied=500, hidden=8, kv_elements=5, score_elements=10, is_block=True)
SLOW_MEMORY = DeviceProfile(name="d", bandwidth=100, flops={1: 1000})
SLOW_PRODUCTS = DeviceProfile(name="d", bandwidth=1000, flops={1: 100})


def test_the_tighter_limit_counts() -> None:
    assert t_proj([BLOCK], SLOW_MEMORY, Pass(1)) == 1000 / 100
    assert t_proj([BLOCK], SLOW_PRODUCTS, Pass(1)) == 1000 / 100
    assert t_proj([BLOCK, BLOCK], SLOW_PRODUCTS, Pass(3)) == 2 * 3 * 1000 / 100
    at_50 = Pass(1, own_tokens=49)
    assert t_attn([BLOCK], SLOW_MEMORY, at_50) == 50 * 10 / 100
    assert t_attn([BLOCK], SLOW_PRODUCTS, at_50) == 50 * 20 / 100


def test_weights_are_read_once_for_all_rows() -> None:
    assert t_proj([BLOCK], SLOW_MEMORY, Pass(8)) == t_proj([BLOCK], SLOW_MEMORY, Pass(1))


def test_efficiencies_divide_the_rates() -> None:
    half = replace(SLOW_MEMORY, eta_m=0.5)
    assert t_proj([BLOCK], half, Pass(1)) == 2 * t_proj([BLOCK], SLOW_MEMORY, Pass(1))
    slower = replace(SLOW_PRODUCTS, eta_c=0.25)
    assert t_attn([BLOCK], slower, Pass(1)) == 4 * t_attn([BLOCK], SLOW_PRODUCTS, Pass(1))


def test_bandwidth_of_kv_is_blended_with_that_of_the_cache() -> None:
    cached = replace(SLOW_MEMORY, l3_bytes=300, l3_bandwidth=500)
    assert m_hat(cached, 300) == m_hat(cached, 0) == 500
    assert m_hat(cached, 1200) == 0.25 * 500 + 0.75 * 100
    assert m_hat(SLOW_MEMORY, 300) == 100


def test_a_stage_is_projections_attention_and_overhead() -> None:
    embedding = Unit(name="e", param_bytes=1000, multiplied=0, hidden=8)
    device = replace(SLOW_MEMORY, block_overhead_s=3, pass_overhead_s=7)
    expected = (16 + 2 * 1000) / 100 + 2 * 10 / 100 + 2 * 3 + 7
    assert roofline_time([embedding, BLOCK, BLOCK], device, Pass(1)) == pytest.approx(expected)
    assert roofline_time([], device, Pass(1)) == 0


def test_the_states_of_all_rows_cross_the_link() -> None:
    link = LinkProfile(to_device_bandwidth=32, to_host_bandwidth=1, to_device_latency_s=2)
    assert t_comm(BLOCK, link, Pass(4)) == 2 + 4 * 8 * 2 / 32
