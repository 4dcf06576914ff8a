"""A token waits for the device once: for the tokens that were drawn. Counted on a pretended device,
where all but the kernels is the code that runs on a GPU."""

from __future__ import annotations

import copy

import pytest

from experiments.standins.pretended import Waits, pretended_devices
from tests.helpers.engines import GREEDY
from tests.helpers.models import prompt, small
from tests.helpers.tokenizers import Letters
from ttc import Engine, Sampling
from ttc.step import Step


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, top_p=0.9)], ids=["greedy", "top_p"])
def test_a_token_waits_for_the_device_once(sampling: Sampling) -> None:
    device, _ = pretended_devices()
    engine = Engine(small(1).to(device), Letters())
    branches = engine.fork(engine.root(prompt(1, 9)), 3)
    batch = engine.running_batch()
    batch.add(branches[:2], Step(9), sampling, limits=[4, 9])
    batch.step()  # the first pass of a plan uploads it
    waits = list[int]()
    while len(batch):
        if len(waits) == 2:
            batch.add(branches[2:], Step(4), sampling)
        with Waits() as counted:
            batch.step()
        waits.append(counted.total)
    assert len(waits) == 8 and waits == [1] * 8


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.3}], ids=["plain", "penalty"])
def test_rows_with_different_options_wait_for_the_device_together(
    settings: dict[str, float],
) -> None:
    device, _ = pretended_devices()
    options = [GREEDY, Sampling(0.8, top_p=0.9), Sampling(1.2, top_k=9, min_p=0.01)]

    def texts(place: str, waits: list[int]) -> list[list[int]]:
        model = copy.deepcopy(small(1))
        for name, value in settings.items():
            setattr(model.generation_config, name, value)
        engine = Engine(model.to(place), Letters())
        branches = engine.fork(engine.root(prompt(1, 9)), 5)
        batch = engine.running_batch()
        for i, branch in enumerate(branches):
            batch.add([branch], Step(6, statistics=i > 2), options[i % 3])
        batch.step()  # the first pass of a plan uploads it
        while len(batch):
            with Waits() as counted:
                batch.step()
            waits.append(counted.total)
        return [branch.generated for branch in branches]

    waits = list[int]()
    assert texts(device, waits) == texts("cpu", [])
    assert waits == [1] * 5
