"""The device's help with the host's layers: times by hand, and the search against one written down
again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.idle_link import HelpedStage, helped_selector
from ttc.cost_model.split_search import Generation, split_plan, strategy_selector
from ttc.cost_model.unit import Unit
from ttc.errors import InvalidInput, OutOfMemory

FAST = {1: 1e12}
CPU = DeviceProfile(name="cpu", bandwidth=10, flops=FAST)
GPU = DeviceProfile(name="gpu", bandwidth=100, flops=FAST)
# of which nine tenths are planned with
LINK = LinkProfile(to_device_bandwidth=4 / 0.9, to_host_bandwidth=4)
BLOCK = Unit(
    name="b",
    param_bytes=1000,
    multiplied=500,
    hidden=0,
    kv_elements=5,
    score_elements=10,
    large_bytes=800,
)
UNITS = (*[BLOCK] * 6, Unit(name="o", param_bytes=400, multiplied=200, hidden=0))
CHAT = Generation(prompt_tokens=10, output_tokens=2)
ATTENDED = (10 + 1 + 1) * 10
"""Bytes of KV that a layer reads."""


def test_a_stage_takes_the_longest_of_what_goes_on_at_once() -> None:
    stage = HelpedStage.of(UNITS[:5], CPU, GPU, LINK, CHAT.work("decode"), after_s=50)
    alone = 5 * (1000 + ATTENDED) / 10
    assert stage.seconds(0) == pytest.approx(alone)
    assert stage.seconds(0.25) == pytest.approx(alone - 5 * 200 / 10)
    # the link is late; it began 50 s before
    assert stage.seconds(0.5) == pytest.approx(5 * 400 / 4 - 50)
    # two layers fit the buffers
    assert replace(stage, after_s=1e9).seconds(0.6) == pytest.approx(3 * 480 / 4)
    slow = HelpedStage.of(UNITS[:5], CPU, CPU, LINK, CHAT.work("decode"), after_s=1e9)
    fast_link = replace(slow, crossing_s=0.0)
    assert fast_link.seconds(1.0) == pytest.approx(5 * 800 / 10)  # what the device computes
    assert stage.buffer_bytes == 2 * 800


def test_the_best_share_keeps_host_and_link_at_work() -> None:
    stage = HelpedStage.of(UNITS[:5], CPU, GPU, LINK, CHAT.work("decode"), after_s=50)
    share = stage.best_share(1e9)
    assert share == pytest.approx(
        (stage.alone_s + 50) / (stage.saved_s + stage.crossing_s), abs=1 / 256
    )
    assert stage.best_share(2 * 800 * 0.2) == 51 / 256  # the last step that there is room for
    assert stage.best_share(-1) == 0
    assert replace(stage, layers=2).best_share(1e9) == 0


def test_buffers_may_be_worth_a_layer() -> None:
    room = 3 * 1000 + 400 + 300
    assert strategy_selector(UNITS, CPU, GPU, LINK, room, CHAT).k == 3
    found = helped_selector(UNITS, CPU, GPU, LINK, room, CHAT)
    assert found.split.k == 3 and found.share == pytest.approx(300 / 1600, abs=1 / 256)
    assert found.device_bytes <= room
    plain = helped_selector(UNITS, CPU, GPU, LINK, room, CHAT, share=0.0)
    assert (plain.split.k, plain.total_s) == (3, split_plan(3, UNITS, CPU, GPU, LINK, CHAT).total_s)
    assert found.total_s < plain.total_s


@given(
    st.integers(0, 7000),
    st.floats(1, 500),
    st.floats(1, 500),
    st.floats(0.5, 100),
    st.booleans(),
)
def test_equals_a_search_written_down_again(
    vram: int, cpu: float, gpu: float, link: float, kv_offload: bool
) -> None:
    devices = (
        replace(CPU, bandwidth=cpu),
        replace(GPU, bandwidth=gpu),
        LinkProfile(to_device_bandwidth=link, to_host_bandwidth=link),
    )
    times = []
    for k in range(len(UNITS) + 1):
        plan = split_plan(k, UNITS, *devices, CHAT, kv_offload=kv_offload)
        layers = min(k, 6)
        for share in [n / 256 for n in range(256)] if layers >= 3 else [0.0]:
            if plan.device_bytes + share * 2 * 800 <= vram:
                host = plan.cpu_s - share * layers * 800 / cpu
                crossing = share * layers * 800 / (0.9 * link)
                late = crossing - min(plan.gpu_s, crossing * 2 / max(layers, 2))
                times.append(max(host, share * layers * 800 / gpu, late) + plan.gpu_s + plan.comm_s)
    found = helped_selector(UNITS, *devices, vram, CHAT, kv_offload=kv_offload)
    assert found.total_s == pytest.approx(min(times))
    assert found.device_bytes <= vram
    assert found.total_s <= strategy_selector(
        UNITS, *devices, vram, CHAT, kv_offload=kv_offload
    ).total_s * (1 + 1e-9)


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(
        OutOfMemory, match=r"buffers for a share of 0.5; 1,200 bytes would do, or a smaller share"
    ):
        helped_selector(UNITS, CPU, GPU, LINK, 1000, CHAT, ks=range(7), share=0.5)
    with pytest.raises(OutOfMemory, match="no split fits 100 bytes on the device"):
        helped_selector(UNITS, CPU, GPU, LINK, 100, CHAT, ks=range(7))
    with pytest.raises(InvalidInput, match="objective='train' is unknown"):
        helped_selector(UNITS, CPU, GPU, LINK, 5000, CHAT, "train")  # type: ignore[arg-type]
