"""`experiments.bench tools`: its problems, its solved examples and its table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.lab.bench import tools
from tests.helpers.scripted import Scripted
from ttc import Engine
from ttc.tools.calculator import calculate


def test_problems_differ_and_their_answers_follow_from_their_numbers() -> None:
    made = tools.word_problems(50)
    assert len({problem.question for problem in made}) == 50 and made == tools.word_problems(50)
    for problem in made:
        containers, each, more = map(int, re.findall(r"\d+", problem.question))
        assert problem.answer == str(containers * each + more)


def test_solved_examples_are_annotated_as_the_calculator_answers() -> None:
    plain, annotated = tools.template(False).examples, tools.template(True).examples
    for (_, without), (_, solution) in zip(plain, annotated, strict=True):
        assert re.sub(r"<<.*?>>", "", solution) == without
        found = re.findall(r"<<(.*?)=(.*?)>>", solution)
        assert len(found) == 2
        assert all(calculate(expression) == value for expression, value in found)


def test_a_measurement_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = list[str]()

    def right(branch: object) -> str:
        asked.append("x")
        return "The answer is 5.0"

    backend = Scripted(right, longest=5000)
    monkeypatch.setattr(Engine, "from_pretrained", lambda *_, **__: backend)
    out = tmp_path / "tools.json"
    solved = {"0": [1, 40, 0, 0], "1": [0, 60, 0, 0]}
    out.write_text(json.dumps({"problems": 2, "solved": {arm: solved for arm in tools.ARMS}}))
    tools.run(problems=2, out=out)
    assert not asked
    table = capsys.readouterr().out
    assert "| plain | 50.0% | 9.5% to 90.5% | 50 | 0.00 |" in table
    record = json.loads(out.read_text())
    del record["solved"]["annotated"]["1"]
    out.write_text(json.dumps(record))
    tools.run(problems=2, out=out)
    assert len(asked) == 1 and json.loads(out.read_text())["solved"]["annotated"]["1"][0] == 0
