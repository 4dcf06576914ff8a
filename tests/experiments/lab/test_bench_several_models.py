"""`experiments.bench several_models`: its rounded weights, its run and its table."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from experiments.lab.bench import several_models
from tests.helpers.scripted import Scripted
from ttc import Engine


def test_weights_are_rounded_to_few_values_in_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Sequential(nn.Linear(64, 3, bias=False))
    before = layers[0].weight.detach().clone()
    model = SimpleNamespace(model=SimpleNamespace(layers=layers))
    monkeypatch.setattr(several_models, "load", lambda name: (model, None))
    monkeypatch.setattr(several_models, "Engine", lambda model, tokenizer: model)
    several_models.rounded()
    groups = layers[0].weight.detach().view(-1, several_models.GROUP)
    scales = groups.abs().amax(1, keepdim=True) / 7
    assert torch.allclose(groups / scales, (groups / scales).round(), atol=1e-4)
    assert all(len(group.unique()) <= 15 for group in groups)
    assert float((layers[0].weight.detach() - before).abs().max()) <= float(scales.max()) / 2 + 1e-6


@pytest.mark.slow
def test_each_arm_is_run_and_the_table_says_who_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = Scripted(lambda branch: "So it is 0", longest=5000)
    monkeypatch.setattr(Engine, "from_pretrained", lambda *_, **__: backend)
    monkeypatch.setattr(
        several_models, "rounded", lambda: Scripted(lambda branch: "or 0", longest=5000)
    )
    out = tmp_path / "several_models.json"
    several_models.run(3, out)
    rows = {row["arm"]: row for row in json.loads(out.read_text())["rows"]}
    assert set(rows["both"]["answers"]) == {"whole", "rounded"}
    assert rows["both"]["answers"]["whole"] > 0 and len(rows["both"]["outcomes"]) == 3
    assert rows["rounded, alone"]["answers"].keys() == {"rounded"}
    assert "| whole, alone | `ab_mcts_m` | 0.0% |" in capsys.readouterr().out


def test_a_ways_chance_is_that_of_the_problems_that_one_of_both_solves() -> None:
    row = {"search": "ab_mcts", "generated_tokens": 9.0, "answers": {"whole": 3, "rounded": 1}}
    rows = [row | {"arm": "one", "outcomes": [1, 1, 0, 0]}]
    rows.append(row | {"arm": "other", "outcomes": [0, 1, 1, 0]})
    lines = several_models.table({"rows": rows}).splitlines()
    assert lines[2] == "| one | `ab_mcts` | 50.0% | 15.0% to 85.0% | 9 | 75% |  |"
    assert lines[3] == "| other | `ab_mcts` | 50.0% | 15.0% to 85.0% | 9 | 75% | 1 |"
