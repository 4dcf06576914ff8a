"""`experiments.bench rollouts`: its problems, a training run that goes on where it was stopped, and
its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.lab.bench import rollouts
from tests.helpers.engines import make_engine
from ttc import Engine, InvalidInput, Problem


def test_held_out_sums_are_none_that_are_trained_on() -> None:
    trained, held_out = rollouts.sums()
    assert len(held_out) == rollouts.HELD_OUT and len(trained) + len(held_out) == 729 - 2
    assert not {one.id for one in trained} & {one.id for one in held_out}
    assert all(
        sum(map(int, one.question[:-1].split("+"))) == int(str(one.answer)) for one in held_out
    )


def test_the_last_result_is_what_is_rewarded() -> None:
    problem = Problem("3 + 1 + 9:", "", "13")
    assert rollouts.reward(problem, rollouts.solved((3, 1, 9))) == 1
    assert rollouts.reward(problem, "\n3 + 1 = 13\n13 + 9 = 22\n\n") == 0
    assert rollouts.reward(problem, "") == 0


def test_a_training_run_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        Engine, "from_pretrained", lambda *_, **__: make_engine(layers=2, context=256)
    )
    monkeypatch.setattr(rollouts, "HELD_OUT", 3)
    monkeypatch.setattr(rollouts, "PROBLEMS", 2)
    out, arm = tmp_path / "rollouts.json", "tree TreeRL"
    rollouts.run(1500, [arm], tmp_path / "whole", out)
    whole = json.loads(out.read_text())["arms"][arm]
    assert len(whole["rows"]) > 1 and len(whole["held_out"]["0"]) == 3
    # a part first, and then the rest
    part = tmp_path / "part.json"
    rollouts.run(100, [arm], tmp_path / "parts", part)
    assert len(json.loads(part.read_text())["arms"][arm]["rows"]) == 1
    rollouts.run(1500, [arm], tmp_path / "parts", part)
    assert json.loads(part.read_text())["arms"][arm]["rows"] == whole["rows"]
    assert "| tree TreeRL |" in capsys.readouterr().out
    with pytest.raises(InvalidInput, match="the arm nope is unknown"):
        rollouts.run(100, ["nope"], tmp_path / "whole", out)


def test_the_table_parts_the_run_by_its_tokens() -> None:
    row = {"generated": 100, "row_tokens": 400, "trained_tokens": 100}
    rows: list[dict[str, Any]] = [row | {"reward": reward} for reward in (0.0, 0.2, 0.4, 0.8)]
    held_out = {"0": [0, 0, 0, 1], "400": [1, 1, 0, 1]}
    record = {"tokens": 400, "arms": {"flat GRPO": {"rows": rows, "held_out": held_out}}}
    last = rollouts.table(record).splitlines()[-1]
    assert last.startswith("| flat GRPO | 4 | 0.00, 0.20, 0.40, 0.80 | 25% | 75% (95%: ")
    assert last.endswith("| 25% |")
