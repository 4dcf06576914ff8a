"""The times of a dry run beside those of the cost model, which looks at a step half way through a
search."""

from __future__ import annotations

import pytest

from tests.helpers.models import deep, prompt
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Engine, Headwise, Layerwise, Paged, Resident
from ttc.calibration.dry_run import dry_run
from ttc.calibration.pace import Pace
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.options import Machine, options
from ttc.cost_model.policies import Steps
from ttc.model.loading.partition import partition
from ttc.residency.base import Residency

RATES = DeviceProfile(
    name="d",
    bandwidth=2e7,
    flops={1: 1e9},
    piece_s=1e-6,
    block_overhead_s=1e-5,
    pass_overhead_s=1e-5,
)
SEARCH = Steps(prompt_tokens=128, output_tokens=48, branches=6, step_tokens=16)
LINK = LinkProfile(to_device_bandwidth=4e6, to_host_bandwidth=4e6)


def best_of_six(engine: Engine) -> None:
    branches = engine.fork(engine.root(prompt(1, 129)), 6)
    for _ in range(3):
        engine.generate(branches, 16)


@pytest.mark.parametrize("kind", [Resident, BeamGroups, Paged, Headwise, Layerwise])
def test_a_dry_run_takes_as_long_as_the_cost_model_says(kind: type[Residency]) -> None:
    """With a link that most of them wait for, and room for half of the KV."""
    engine = Engine(deep(layers=4, heads=2, context=512), Letters())
    units = partition(engine.model.config, engine.dtype).units
    kv_bytes = (128 + 6 * (48 + 16)) * engine.memory.bytes_per_token
    room = kv_bytes if kind is Resident else kv_bytes // 2
    weights = sum(unit.param_bytes for unit in units)
    machine = Machine(
        compiled=RATES, modules=RATES, host=RATES, link=LINK, device_bytes=weights + room
    )
    ways = {way.memory: way for way in options(units, 2, machine, SEARCH, ["resident"])}
    name = {BeamGroups: "beam_groups"}.get(kind, kind.__name__.lower())
    found = dry_run(kind(room / 2**30), best_of_six, engine, pace=Pace(units, RATES, LINK))
    assert found.decoding_s == pytest.approx(3 * ways[name].step_s, rel=0.06)
    assert (found.to_device.total() > 0) == (kind is not Resident)
