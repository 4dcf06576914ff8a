"""The plan's benchmark: what each setting leaves possible, a step of it, and the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.lab.bench import plan
from experiments.lab.bench.plan import (
    LLAMA,
    OPT,
    SETTINGS,
    Setting,
    Way,
    half_way,
    planned,
)
from tests.helpers.placements import write_profile
from tests.helpers.tiers import slow
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.policies import Steps
from ttc.errors import InvalidInput

COMPILED = DeviceProfile(name="cpu bfloat16", bandwidth=30e9, flops={1: 2e10, 64: 3e11})
MODULES = replace(COMPILED, name="cpu bfloat16 by modules", block_overhead_s=3e-4)


def test_the_settings_are_what_their_names_say() -> None:
    reasons = []
    for setting in SETTINGS:
        found = {(o.placement, o.memory): o for o in planned(setting, COMPILED, MODULES).options()}
        reasons.append(found["resident", "resident"].reason)
        assert any(option.feasible for option in found.values())
    kv, weights = "KV does not fit", "weights do not fit"
    assert reasons == ["", kv, weights, kv, weights]


def test_branches_stand_half_way_without_being_computed() -> None:
    shape = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config = replace(
        SETTINGS[0], config=type(plan.LLAMA)(**shape, num_hidden_layers=3, vocab_size=512)
    )
    setting = replace(config, search=Steps(20, 16, 2, 4))
    plan_ = planned(setting, COMPILED, MODULES)
    option = next(o for o in plan_.options() if (o.placement, o.memory) == ("resident", "paged"))
    engine = plan.engine_of(setting, plan_, option)
    branches = half_way(engine, setting.search)
    assert [len(branch.tokens) for branch in branches] == [20 + 1 + 6] * 2
    assert all(
        float(part.float().min()) > 0
        for kv in engine.memory.live
        for c in kv.device
        if c
        for part in c.both
    )
    engine.generate(branches, 4)
    assert len(branches[0].tokens) == 31


SEARCH = Steps(1100, 72, 4, 8)
SMALL = {"num_hidden_layers": 4, "vocab_size": 512}
KV_SHORT = Setting("KV", "small", type(LLAMA)(
    hidden_size=60, intermediate_size=160, num_attention_heads=15, num_key_value_heads=5, **SMALL
), SEARCH, 1.0, 0.5)  # fmt: skip
PROBLEMS = replace(KV_SHORT, search=Steps(1100, 72, 6, 8, problems=3))
WEIGHTS_SHORT = Setting("weights", "small", type(OPT)(
    hidden_size=64, ffn_dim=256, num_attention_heads=16, word_embed_proj_dim=64, **SMALL
), SEARCH, 0.7, 0.3)  # fmt: skip


@pytest.mark.few
@pytest.mark.parametrize(
    ("setting", "placement", "memory"),
    [
        (KV_SHORT, "resident", "paged"),
        (KV_SHORT, "resident", "headwise"),
        (KV_SHORT, "split", "layerwise"),
        (PROBLEMS, "resident", "paged"),
        slow((PROBLEMS, "resident", "headwise")),
        slow((PROBLEMS, "resident", "layerwise")),
        (KV_SHORT, "streamed", "beam_groups"),
        slow((WEIGHTS_SHORT, "resident", "paged")),  # branch after branch
        (WEIGHTS_SHORT, "split", "paged"),
        (WEIGHTS_SHORT, "streamed", "headwise"),
    ],
)
def test_so_many_bytes_cross_as_were_predicted(
    setting: Setting, placement: str, memory: str
) -> None:
    plan_ = planned(setting, COMPILED, MODULES)
    option = next(o for o in plan_.options() if (o.placement, o.memory) == (placement, memory))
    way = Way(setting, plan_, option)
    way.step()  # finds what the one before it left
    assert option.link_bytes > 0
    assert way.crossed_bytes == pytest.approx(
        option.link_bytes, rel=0.08
    )  # the last pass fetches ahead what no other one reads


def test_several_problems_have_a_prompt_each() -> None:
    setting = replace(KV_SHORT, search=Steps(20, 16, 4, 4, problems=2))
    plan_ = planned(setting, COMPILED, MODULES)
    option = next(o for o in plan_.options() if (o.placement, o.memory) == ("split", "paged"))
    branches = half_way(plan.engine_of(setting, plan_, option), setting.search)
    prompts = [tuple(branch.tokens[:20]) for branch in branches]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]


def test_a_part_of_the_settings_leaves_the_others_in_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = LinkProfile(to_device_bandwidth=1e9, to_host_bandwidth=1e9)
    torch.set_num_threads(1)
    profile = Path(
        write_profile(
            tmp_path / "profile.json",
            [COMPILED, replace(MODULES, name="cpu bfloat16 by plain modules")],
            link,
        )
    )
    monkeypatch.setattr(
        plan, "measured", lambda setting, _: [row("paged", 0.3, setting=setting.name)]
    )
    out = tmp_path / "plan.json"
    for names in (["weights do not fit"], ["everything fits"], ["weights do not fit"]):
        plan.run(names, profile=profile, out=out)
    found = [row["setting"] for row in json.loads(out.read_text())["rows"]]
    assert found == ["everything fits", "weights do not fit"]
    with pytest.raises(InvalidInput, match="'none' is unknown; use some of 'everything fits'"):
        plan.run(["none"], profile=profile, out=out)


def row(memory: str, measured: float, **more: Any) -> dict[str, Any]:
    common = {
        "setting": "s",
        "placement": "resident",
        "memory": memory,
        "number": None,
        "step_s": 0.3,
        "reason": "",
    }
    return (
        common | {"measured_s": measured, "fastest_s": measured, "chosen": memory == "paged"} | more
    )
