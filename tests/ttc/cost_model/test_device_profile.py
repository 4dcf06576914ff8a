"""Profiles: rates between measured rows, and values that cannot be."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from ttc.cost_model.device_profile import DeviceProfile
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


@pytest.mark.parametrize(
    ("name", "value"),
    [("bandwidth", 0), ("eta_c", -1), ("eta_m", nan), ("flops", {}), ("flops", {1: 5.0, 4: inf})],
)
def test_rates_and_shares_are_above_zero(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{name} of cpu is .*; it must be above 0"):
        profile(**{name: value})
