"""The host's layers of a split as compiled code: the same tokens, and when their modules run
instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import prompt
from tests.helpers.placements import deeper, placed, write_profile
from ttc import Auto, Engine, Paged, Split
from ttc.attention.fused import SWITCH
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.profile_file import BY_MODULES
from ttc.model.compiled.compiled_check import compiled_decoder
from ttc.model.compiled.cpu_program import Program
from ttc.placement.split import SplitRunner

pytestmark = pytest.mark.skipif(
    compiled_decoder(deeper("llama")) is None, reason="layers are not compiled on this machine"
)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None]]:
    """What programs have run: how many layers they have, and the part, None for all."""
    run, ran = Program.run, list[tuple[int, int | None]]()

    def watched(self: Program, part: int | None = None) -> None:
        ran.append((len(self.attends), part))
        run(self, part)

    monkeypatch.setattr(Program, "run", watched)
    return ran


def runner_of(engine: Engine) -> SplitRunner:
    assert isinstance(engine.runner, SplitRunner)
    return engine.runner


@pytest.mark.parametrize(
    ("family", "k", "settings"),
    [
        ("llama", 4, {}),
        ("qwen3", 2, {"tie_word_embeddings": True}),
        ("mistral", 3, {"sliding_window": 8}),
    ],
)
def test_the_hosts_layers_run_in_one_call_and_give_the_same(
    family: str, k: int, settings: dict[str, Any], programs: list[tuple[int, int | None]]
) -> None:
    plain = deeper(family, **settings)
    engine = placed(plain, Split(k=k))
    assert runner_of(engine).host is not None
    programs.clear()  # of the check at load
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert {layers for layers, _ in programs} == {k - 1}
    assert (k - 1, None) in programs


def test_kv_that_streams_is_attended_between_the_parts(
    programs: list[tuple[int, int | None]],
) -> None:
    plain = deeper("llama")
    engine = placed(plain, Split(k=3, kv_offload=True), memory=Paged(12 / 2**20, block_tokens=16))
    programs.clear()
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert engine.memory.link.to_device_bytes["stream"] > 0
    assert {part for _, part in programs} >= {0, 1, 2}


@torch.no_grad()
def test_the_modules_run_where_something_acts_on_them(
    programs: list[tuple[int, int | None]],
) -> None:
    engine = placed(deeper("llama"), Split(k=3))
    branch = engine.root(prompt(1, 9))
    engine.generate([branch], 3, sampling=GREEDY)
    mlp, seen = engine.model.model.layers[1].mlp, list[int]()
    handle = mlp.register_forward_hook(lambda *_: seen.append(1))
    programs.clear()
    engine.generate([branch], 3, sampling=GREEDY)
    assert seen and not programs
    handle.remove()
    mlp.down_proj.weight.mul_(2)
    plain = deeper("llama")
    plain.model.layers[1].mlp.down_proj.weight.mul_(2)
    other = engine.root(prompt(2, 9))
    engine.generate([other], 3, sampling=GREEDY)
    assert_like_plain(plain, other)


def test_layers_of_another_kind_run_by_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert runner_of(placed(deeper("gpt2"), Split(k=3))).host is None
    assert runner_of(placed(deeper("llama"), Split(k=1))).host is None
    monkeypatch.setenv(SWITCH, "0")
    assert runner_of(placed(deeper("llama"), Split(k=3))).host is None


# -------------------------------------------------------------------- which rates a split is chosen
# by

LINK = LinkProfile(to_device_bandwidth=16e9, to_host_bandwidth=16e9)
COMPILED = DeviceProfile(name="cpu float32", bandwidth=40e9, flops={1: 1e12}, block_overhead_s=1e-4)
SLOW = replace(COMPILED, name="cpu float32" + BY_MODULES, block_overhead_s=5e-3)
GPU = DeviceProfile(name="cuda float32", bandwidth=200e9, flops={1: 1e13}, block_overhead_s=1e-3)
STEP: dict[str, Any] = {"prompt_tokens": 16, "output_tokens": 8, "branches": 2}


@pytest.mark.parametrize(("family", "k"), [("llama", 4), ("gpt2", 0)])
def test_auto_goes_by_what_runs_the_hosts_layers(family: str, k: int, tmp_path: Path) -> None:
    # a layer takes 0.1 ms by compiled layers of the host, 5 ms by its modules, and 1 ms on the
    # device
    profile = write_profile(tmp_path / "profile.json", [COMPILED, SLOW, GPU], LINK)
    decided = Split(profile=profile, budget_gib=1, **STEP).decide(
        deeper(family), torch.device("cuda")
    )
    assert decided == k


@pytest.mark.parametrize(("family", "compiled"), [("llama", True), ("gpt2", False)])
def test_a_plan_knows_what_runs_a_model(
    family: str, compiled: bool, tmp_path: Path, letters: None
) -> None:
    deeper(family).save_pretrained(tmp_path)
    profile = write_profile(tmp_path / "profile.json", [COMPILED, SLOW], LINK)
    machine = Auto(profile=profile).plan(tmp_path, device="cpu", dtype="float32").machine
    expected = COMPILED if compiled else SLOW
    assert (machine.compiled.block_overhead_s, machine.host.block_overhead_s) == (
        expected.block_overhead_s,
    ) * 2
    assert machine.modules.block_overhead_s == SLOW.block_overhead_s
