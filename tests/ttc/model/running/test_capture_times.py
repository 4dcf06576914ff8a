"""What CAPTURE's Algorithm 1 is told of a layer: what the engine measures is what takes the
time."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

from experiments.standins import small_models
from tests.helpers.clocks import Clock, link_clock
from tests.helpers.models import prompt
from tests.helpers.placements import deeper
from tests.helpers.tokenizers import Letters
from ttc import Capture, Engine, Streamed
from ttc.cost_model.capture import Line
from ttc.model.running.capture_times import MeasuredTimes
from ttc.model.running.regeneration import Regeneration

SLOW_S = 0.01


def slowed(plain: Any, clock: Clock) -> Any:
    """A model whose first layer takes `SLOW_S` for its MLP."""
    model = copy.deepcopy(plain)
    model.model.decoder.layers[0].fc1.register_forward_pre_hook(lambda *_: clock.sleep(SLOW_S))
    return model


def capture_of(engine: Engine) -> Capture:
    assert isinstance(engine.residency, Capture)
    return engine.residency


def measured(engine: Engine) -> MeasuredTimes:
    found = capture_of(engine).measure
    assert isinstance(found, MeasuredTimes)
    return found


def opt() -> Any:
    return deeper("opt", num_key_value_heads=4)


def test_the_rest_of_a_layer_is_what_it_takes_beside_keys_and_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, plain = link_clock(monkeypatch), opt()
    slow, fast = (
        Engine(model, Letters(), memory=Capture(block_tokens=8))
        for model in (slowed(plain, clock), plain)
    )
    for layer in (0, 1):  # one layer stands for all
        assert measured(slow)(layer, 1, 64).forward_s == pytest.approx(SLOW_S)
        assert measured(fast)(layer, 1, 64).forward_s == 0
    assert measured(slow)(0, 1, 64).kv_gen(64) == 0


def test_it_is_measured_once_for_each_power_of_two_of_rows_and_counts_nowhere() -> None:
    engine = Engine(opt(), Letters(), memory=Capture(block_tokens=8, budget_gib=1 / 2**10))
    times, passes = measured(engine), list[int]()
    run = times.run_pass
    times.run_pass = lambda tokens, plan: passes.append(len(tokens)) or run(tokens, plan)
    for rows in (1, 5, 8, 6, 1):
        times(0, rows, 100)
    # numbers of blocks, and a first time and five
    assert len(passes) == 2 * 3 * 6 and {*passes} == {1, 5}
    memory = engine.memory
    assert not memory.live and not memory.device.used_bytes and not memory.host.used_bytes
    assert not memory.link.to_device_bytes and not memory.link.exposed_s


@pytest.mark.slow
def test_waits_for_weights_are_no_part_of_it_and_count_nowhere() -> None:
    model = opt()
    runner = Streamed(link_gbps=0.0005).place(model, "cpu")
    engine = Engine(model, Letters(), runner=runner, memory=Capture(block_tokens=8))
    before = dict(engine.memory.link.to_device_bytes)
    times = measured(engine)(0, 1, 64)
    over_the_link_s = runner.streamed_layer_bytes / 5e5
    assert 0 < times.forward_s < over_the_link_s / 2
    assert dict(engine.memory.link.to_device_bytes) == before and engine.memory.link.exposed_s == 0


def test_known_times_come_out_right_and_what_disturbs_some_passes_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In mini-batches of 64 tokens a layer takes 10 ms and 20 us a token, and 50 us a token that is
    generated."""
    clock, model, attended, batches = link_clock(monkeypatch), opt(), [0], list[int]()
    calls = itertools.count(1)

    def take(seconds: float) -> None:
        """Each fifth time it takes three times as long."""
        clock.sleep(seconds * (3 if next(calls) % 5 == 0 else 1))

    model.model.decoder.layers[0].fc1.register_forward_pre_hook(
        lambda *_: take(0.01 + 2e-5 * attended[-1])
    )
    engine = Engine(model, Letters(), memory=Capture(block_tokens=8, mini_batch_tokens=64))
    times = measured(engine)
    run, generate = times.run_pass, Regeneration.__call__

    def generated(self: Regeneration, layer: int, inputs: Any, positions: Any) -> Any:
        batches.append(len(inputs))
        take(5e-5 * len(inputs))
        return generate(self, layer, inputs, positions)

    times.run_pass = lambda tokens, plan: (  # type: ignore[func-returns-value]
        attended.append(sum(entry.length for entry in plan.pieces)) or run(tokens, plan)
    )
    monkeypatch.setattr(Regeneration, "__call__", generated)
    at = times(0, 3, 1000)
    assert at.forward_s == pytest.approx(0.01 + 2e-5 * 1000, rel=0.1)
    assert at.kv_gen(1000) == pytest.approx(5e-5 * 1000, rel=0.1)
    assert {*attended} == {0, 32, 64, 128} and {*batches} == {32, 64}  # up to two mini-batches


def test_mini_batches_are_timed_as_small_as_the_device_makes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three of 32 tokens, at 256 bytes, are half of this device; of 20 tokens there are up to four
    blocks."""
    engine = Engine(
        opt(), Letters(), memory=Capture(block_tokens=8, budget_gib=2 * 3 * 32 * 256 / 2**30)
    )
    sizes, generate = list[int](), Regeneration.__call__

    def generated(self: Regeneration, layer: int, inputs: Any, positions: Any) -> Any:
        sizes.append(len(inputs))
        return generate(self, layer, inputs, positions)

    monkeypatch.setattr(Regeneration, "__call__", generated)
    measured(engine)(0, 1, 20)
    assert {*sizes} == {8, 16, 32}
    sizes.clear()
    measured(engine)(0, 1, 1000)
    assert {*sizes} == {16, 32}
    measured(engine)(0, 1, 1200)
    assert len(sizes) == 6 * (1 + 1 + 2)  # and not once more


def test_with_recurrent_layers_it_is_left_out_as_in_the_paper() -> None:
    engine = Engine(small_models.build("jamba"), Letters(), memory=Capture(act_share=None))
    regeneration = Regeneration(engine.model, engine.runner.shapes)
    times = MeasuredTimes(engine.runner, regeneration, engine.memory, 8, 64)
    assert times.measure_forward(0, 1, 4) == Line(0.0)


@pytest.mark.slow
def test_the_engine_makes_no_act_blocks_where_they_would_lose_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """29 tokens take 4 ms over this link, and no time to be generated; where the rest of a layer
    takes 10 ms, nothing can be gained."""
    clock, plain = link_clock(monkeypatch), opt()
    options: dict[str, Any] = {"prefill_tokens": 5}
    pays = Engine(plain, Letters(), memory=Capture(block_tokens=8, link_gbps=0.002), **options)
    pays.root(prompt(1, 30))
    near, far, _ = capture_of(pays).counts()
    assert near + far > 0 and capture_of(pays).reason == ""
    loses = Engine(
        slowed(plain, clock), Letters(), memory=Capture(block_tokens=8, link_gbps=0.002), **options
    )
    with pytest.warns(
        UserWarning, match="memory=capture makes no ACT blocks for now: by times measured here"
    ) as seen:
        loses.root(prompt(1, 30))
        loses.root(prompt(2, 30))
    assert capture_of(loses).counts()[:2] == (0, 0) and len(seen) == 1
    assert "set memory.act_share" in capture_of(loses).reason
