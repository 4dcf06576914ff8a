"""Algorithm 1: against a loop written down again, its constraint, its objectives, and what cannot
fit."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.roofline import roofline_time
from ttc.cost_model.split_search import Generation, split_plan, strategy_selector
from ttc.cost_model.unit import Unit
from ttc.errors import InvalidInput, OutOfMemory

CPU = DeviceProfile(name="cpu", bandwidth=10, flops={1: 1000, 64: 2000})
GPU = DeviceProfile(name="gpu", bandwidth=100, flops={1: 10_000, 64: 100_000})
LINK = LinkProfile(to_device_bandwidth=50, to_host_bandwidth=50, to_device_latency_s=1)
BLOCK = Unit(
    name="b",
    param_bytes=1000,
    multiplied=500,
    hidden=8,
    kv_elements=5,
    score_elements=10,
    is_block=True,
)
EMBEDDING = Unit(name="e", param_bytes=300, multiplied=0, hidden=8)
OUTPUT = Unit(name="o", param_bytes=400, multiplied=200, hidden=8)
UNITS = (EMBEDDING, BLOCK, BLOCK, BLOCK, OUTPUT)
CHAT = Generation(prompt_tokens=10, output_tokens=6, branches=2)


def test_the_states_of_the_last_unit_on_the_host_are_what_crosses() -> None:
    """Eq. 4.15: B x H x d_sz of the unit before the cut, over the bandwidth to the device, with its
    latency."""
    widths = (3, 5, 7, 11)
    units = [replace(BLOCK, hidden=hidden) for hidden in widths]
    link = LinkProfile(
        to_device_bandwidth=50, to_host_bandwidth=1, to_device_latency_s=1, to_host_latency_s=9
    )
    plans = [split_plan(k, units, CPU, GPU, link, CHAT) for k in range(5)]
    assert [plan.comm_s for plan in plans] == pytest.approx(
        [0, *[1 + 2 * h * 2 / 50 for h in widths[:3]], 0]
    )


def test_kv_counts_on_the_device_unless_it_is_offloaded() -> None:
    kv = 3 * (10 + 2 * 6) * 10  # three blocks, the prompt once and two branches, 10 bytes a token
    there, away = (split_plan(0, UNITS, CPU, GPU, LINK, CHAT, kv_offload=o) for o in (False, True))
    assert (there.device_bytes, there.host_bytes) == (3700 + kv, 0)
    assert (away.device_bytes, away.host_bytes) == (3700, kv)
    assert strategy_selector(UNITS, CPU, GPU, LINK, 3700 + kv - 1, CHAT, kv_offload=False).k == 1
    assert strategy_selector(UNITS, CPU, GPU, LINK, 3700 + kv, CHAT, kv_offload=False).k == 0


def test_states_stay_with_their_layer_where_kv_is_offloaded() -> None:
    recurrent = Unit(
        name="r", param_bytes=1000, multiplied=500, hidden=8, state_bytes=70, is_block=True
    )
    for kv_offload in (True, False):
        plan = split_plan(
            1, [BLOCK, recurrent], CPU, GPU, LINK, Generation(10, 10, 4), kv_offload=kv_offload
        )
        # of four branches before and after a step, and where they part
        assert plan.device_bytes == 1000 + 9 * 70


def test_a_tied_embedding_needs_a_copy_only_where_the_model_is_split() -> None:
    tied = (replace(EMBEDDING, param_bytes=0, tied=(("o", 400),)), *UNITS[1:])
    plans = [split_plan(k, tied, CPU, GPU, LINK, Generation(1, 1)) for k in (0, 1, 5)]
    assert [plan.device_bytes for plan in plans] == [3400, 3400, 0]
    assert plans[1].host_bytes == 400 + 3 * 2 * 10  # and the KV, which is offloaded
    assert plans[2].host_bytes == 3400 + 3 * 2 * 10


def test_decoding_counts_half_way_and_prefill_the_prompt() -> None:
    assert CHAT.work("decode").rows == 2 and CHAT.work("decode").attended() == 2 * (10 + 3 + 1)
    assert CHAT.work("prefill").rows == 10 and CHAT.work("prefill").attended() == 55


def test_objectives_can_differ() -> None:
    """A device with slow memory and fast products loses at decoding and wins at a prompt."""
    memory = DeviceProfile(name="cpu", bandwidth=100, flops={1: 1000})
    products = DeviceProfile(name="gpu", bandwidth=50, flops={1: 1_000_000})
    load = Generation(prompt_tokens=1000, output_tokens=2)
    assert strategy_selector(UNITS, memory, products, LINK, 10_000, load, "decode").k == 5
    assert strategy_selector(UNITS, memory, products, LINK, 10_000, load, "prefill").k == 0


sizes = st.integers(1, 2000)


@given(
    st.lists(sizes, min_size=1, max_size=6),
    st.integers(0, 8000),
    st.floats(1, 500),
    st.floats(1, 500),
    st.booleans(),
)
def test_equals_algorithm_1_written_down_again(
    blocks: list[int], vram: int, cpu_bandwidth: float, gpu_bandwidth: float, kv_offload: bool
) -> None:
    units = [replace(BLOCK, param_bytes=b, multiplied=b // 2 + 1) for b in blocks]
    cpu, gpu = replace(CPU, bandwidth=cpu_bandwidth), replace(GPU, bandwidth=gpu_bandwidth)
    work, best, fastest = CHAT.work("decode"), None, inf
    for k in range(len(units) + 1):
        kv = 0 if kv_offload else sum(10 * (10 + 2 * 6) for _ in units[k:])
        if sum(unit.param_bytes for unit in units[k:]) + kv > vram:
            continue
        total = roofline_time(units[:k], cpu, work) + roofline_time(units[k:], gpu, work)
        if 0 < k < len(units):
            total += 1 + 2 * 8 * 2 / 50
        if total < fastest:
            best, fastest = k, total
    plan = strategy_selector(units, cpu, gpu, LINK, vram, CHAT, kv_offload=kv_offload)
    assert plan.k == best
    assert plan.total_s == pytest.approx(fastest)


@given(st.lists(sizes, min_size=2, max_size=6))
def test_of_splits_that_take_equally_long_the_one_with_most_on_the_device_is_chosen(
    blocks: list[int],
) -> None:
    """Their sums are added up in other orders, and so rounded otherwise."""
    units = [replace(BLOCK, param_bytes=b, multiplied=b // 2 + 1) for b in blocks]
    device = replace(GPU, bandwidth=7)
    free = LinkProfile(to_device_bandwidth=1e30, to_host_bandwidth=1e30)
    assert strategy_selector(units, device, device, free, 10**6, CHAT).k == 0


def test_a_host_that_is_too_small_is_refused_with_the_bytes_it_needs() -> None:
    kv = 3 * 22 * 10
    assert strategy_selector(UNITS, CPU, GPU, LINK, 1400, CHAT, host_bytes=2300 + kv).k == 3
    with pytest.raises(
        OutOfMemory,
        match=r"no split fits 1,400 bytes on the device and 2,959 on the host: .* 2,960 bytes",
    ):
        strategy_selector(UNITS, CPU, GPU, LINK, 1400, CHAT, host_bytes=2300 + kv - 1)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match="objective='train' is unknown; use one of decode, prefill"
    ):
        strategy_selector(UNITS, CPU, GPU, LINK, 1400, CHAT, "train")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"k=6 must be from 0 \(all on the device\) to 5"):
        split_plan(6, UNITS, CPU, GPU, LINK, CHAT)
    with pytest.raises(InvalidInput, match="branches=0 must be at least 1"):
        Generation(1, 1, 0)
