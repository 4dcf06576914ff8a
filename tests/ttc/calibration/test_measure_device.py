"""Measuring a machine: what is timed is what runs, and rates follow from times."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from tests.helpers.models import COMMON
from ttc.calibration import measure_device
from ttc.calibration.measure_device import ProfileBeside, profile_device, profile_link
from ttc.calibration.pass_timer import LEAST, MOST, PassTimer
from ttc.errors import TTCError
from ttc.model.loading.partition import partition_units

CPU = torch.device("cpu")


def test_passes_of_a_random_model_are_counted_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTC_FUSED", "0")
    timer = PassTimer(LlamaConfig(**COMMON), CPU, torch.float32)
    assert timer.seconds(3, 20) > 0
    assert 1 + LEAST <= len(timer.passes_s) <= 1 + MOST  # the prompt's pass is not among them
    # none between two calls
    assert timer.between_s > 0 and len(timer.gaps_s) == len(timer.passes_s) - 2
    timer.release()
    assert timer.engine.kv_bytes() == 0


def test_a_prefix_is_there_without_having_been_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTC_FUSED", "0")
    timer = PassTimer(LlamaConfig(**COMMON), CPU, torch.float32)
    passes: list[int] = []
    timer.engine.model.register_forward_pre_hook(lambda *_: passes.append(1))
    root = timer.prefix(20)
    assert (len(root.tokens), timer.prefix(20)) == (21, root) and not passes
    assert timer.seconds(2, 20) > 0 and passes
    passes.clear()
    assert timer.seconds(2, 20, own=9) > 0  # nor were these
    assert len(passes) == len(timer.passes_s)
    assert 0 < timer.around_s < 60
    timer.release()
    assert timer.engine.kv_bytes() == 0


class Timer:
    """A layer takes `speed` x 0.1 s; 0.001 s for each row, 1e-6 for each number of its queries,
    keys and values, 1e-12 for each operation of its products, and 1e-5 for each row and token where
    it has 16 heads."""

    speed = 1.0
    around_s = 0.3

    def __init__(self, config: object, *_: object):
        self.layers = config.num_hidden_layers  # type: ignore[attr-defined]
        self.between_s = 0.8 + 16 * 1e-4 * config.vocab_size  # type: ignore[attr-defined]
        block = partition_units(config, torch.bfloat16)[1]
        self.row_s = 0.001 + 1e-6 * block.projected + 1e-12 * block.f_proj(1)
        self.token_s = 1e-5 * block.projected / 4096

    def seconds(
        self, rows: int, context: int, enough_s: float = 1.0, prefixes: int = 1, own: int = 0
    ) -> float:
        return self.speed * (7 + self.layers * (0.1 + rows * (self.row_s + context * self.token_s)))


@pytest.fixture
def made_up_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_device, "PassTimer", Timer)
    monkeypatch.setattr(measure_device, "read_bandwidth", lambda device=None: 5.0 / Timer.speed)
    monkeypatch.setattr(measure_device, "measure_cache", lambda: (8, 9.0))


HEAD_S = 1e-6 + 16 * 1e-5 / 4096
"""A number's, with the attention to a prefix of 16 tokens."""
ATTENTION_FLOPS = 4 * 16 * 128 / 1e-5


@pytest.mark.slow
@pytest.mark.usefixtures("made_up_times")
def test_rates_are_operations_over_the_difference_between_two_depths() -> None:
    found = profile_device(CPU, torch.bfloat16)
    assert (found.name, found.bandwidth, found.l3_bytes, found.l3_bandwidth) == (
        "cpu bfloat16",
        5.0,
        8,
        9.0,
    )
    narrow = partition_units(measure_device.model_config(measure_device.NARROW, 1), torch.bfloat16)
    of_a_row = 0.001 + HEAD_S * narrow[1].projected + 1e-12 * narrow[1].f_proj(1)
    assert found.block_overhead_s == pytest.approx(0.1 + of_a_row)
    counts = (1, 4, 16, 64, 256)
    overheads = {rows: max(found.block_overhead_s, 0.1 + 0.001 * rows) for rows in counts}
    assert found.block_overheads == pytest.approx(overheads)
    assert found.head_s == pytest.approx(dict.fromkeys(counts, HEAD_S))
    assert found.flops == pytest.approx(dict.fromkeys(counts, 1e12))
    assert found.pass_overhead_s == pytest.approx(7)
    assert (found.row_s, found.logit_s) == pytest.approx((0.05, 1e-4))  # of 16
    assert found.step_s == 0.3
    assert found.attention_flops == pytest.approx(
        dict.fromkeys((1, 4, 16, 64, 256), ATTENTION_FLOPS)
    )


@pytest.mark.usefixtures("made_up_times")
def test_the_machine_is_measured_as_it_is_when_a_model_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = ProfileBeside(CPU, torch.bfloat16)
    model = Timer(measure_device.model_config(measure_device.ATTENDING, 5))
    monkeypatch.setattr(Timer, "speed", 2.0)
    # 48 queries to a KV head, as 24 rows with 2
    found, seconds = beside.measure(model, 16, 1000, group=3)
    assert (found.bandwidth, found.l3_bytes, found.l3_bandwidth) == (2.5, 8, 9.0)
    assert found.block_overhead_s == pytest.approx(2 * 0.1, rel=0.02)
    assert found.block_overheads == pytest.approx({16: 2 * (0.1 + 16 * 0.001)})
    assert found.head_s == pytest.approx({16: 2 * HEAD_S})
    assert found.pass_overhead_s == pytest.approx(14)
    assert found.flops == pytest.approx({16: 1e12 / 2})
    assert found.attention_flops == pytest.approx(dict.fromkeys((1, 24), ATTENTION_FLOPS / 2))
    layer_s = 0.1 + 16 * (model.row_s + 1000 * 1e-5)
    assert seconds == pytest.approx(2 * (7 + 5 * layer_s))


@pytest.mark.slow
def test_a_machine_that_is_too_busy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timer:
        def __init__(self, config: object, *_: object):
            self.layers = config.num_hidden_layers  # type: ignore[attr-defined]

        def seconds(self, rows: int, context: int, enough_s: float) -> float:
            return 1 / self.layers

    monkeypatch.setattr(measure_device, "PassTimer", Timer)
    with pytest.raises(
        TTCError, match=r"a narrow layer seemed to take -50\.000 ms; the machine is too busy"
    ):
        profile_device(CPU, torch.bfloat16)


@pytest.mark.slow
def test_a_simulated_link_is_not_faster_than_stated() -> None:
    link = profile_link(CPU, 1.0)
    assert link.simulated
    assert 0 < link.to_device_bandwidth <= 1.01e9 and 0 < link.to_host_bandwidth <= 1.01e9
    assert link.to_device_latency_s > 0 and link.to_host_latency_s > 0
