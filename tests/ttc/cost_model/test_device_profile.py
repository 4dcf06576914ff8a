"""Profiles: rates between measured rows, and values that cannot be."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.errors import InvalidInput


def profile(**others: Any) -> DeviceProfile:
    return DeviceProfile(
        **({"name": "cpu", "bandwidth": 10.0, "flops": {1: 8.0, 4: 32.0, 16: 64.0}} | others)
    )


def test_rates_follow_the_measured_ones() -> None:
    measured = profile()
    assert [measured.p(rows) for rows in (1, 4, 16)] == [8, 32, 64]
    # half way between 1 and 4, and between 8 and 32, in logarithms
    assert measured.p(2) == pytest.approx(16)
    assert measured.p(8) == pytest.approx((32 * 64) ** 0.5)
    assert measured.p(1000) == 64


def test_attention_has_its_own_rate_or_that_of_products() -> None:
    assert profile().p_attn(4) == 32
    assert profile(attention_flops={1: 3.0}).p_attn(4) == 3


@pytest.mark.parametrize("name", ["bandwidth", "eta_c", "eta_m"])
@pytest.mark.parametrize("value", [0, -1, nan, inf])
def test_rates_and_shares_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(
        InvalidInput, match=f"{name} of cpu is {value}; it must be a number above 0"
    ):
        profile(**{name: value})


def test_bad_profiles_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the profile of cpu has no flops"):
        profile(flops={})
    with pytest.raises(InvalidInput, match="flops of cpu at 4 rows is 0"):
        profile(flops={1: 5.0, 4: 0})
    with pytest.raises(InvalidInput, match="l3_bytes of cpu is -1; it must be a number from 0 up"):
        profile(l3_bytes=-1)
    with pytest.raises(InvalidInput, match="to_host_bandwidth of the link is 0"):
        LinkProfile(to_device_bandwidth=1, to_host_bandwidth=0)
    with pytest.raises(InvalidInput, match="to_device_latency_s of the link is -1"):
        LinkProfile(to_device_bandwidth=1, to_host_bandwidth=1, to_device_latency_s=-1)
