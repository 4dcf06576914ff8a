"""The benchmark of long texts: what it measures, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.lab.bench import long
from tests.helpers.benches import save_tiny_model
from ttc.errors import InvalidInput


@pytest.mark.slow
def test_each_way_writes_what_a_case_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny_model(tmp_path, 1024)
    rows = []
    for way in long.WAYS:
        long.run_case(way, "3x300", model=model)
        figures = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert figures["step_ms"] > 0 and figures["peak_bytes"] > 0
        rows.append({"case": "3x300", "way": way} | figures)
    own = rows[0]
    assert 1 <= own["kv_peak_bytes"] / own["kv_bytes"] <= 1.6
    assert own["entries"] <= 1 + 3 * 7


@pytest.mark.parametrize(
    ("case", "way", "message"),
    [
        *(
            (c, "generate", f"the case '{c}' is no num")
            for c in ("16", "x", "16x0", "1x4x2", "-1x8")
        ),
        ("1x1", "vllm", "--peer PYTHON"),
        ("1x1", "llama", "the way 'llama' is none"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    case: str, way: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        long.run(cases=[case], ways=[way], out=tmp_path / "long.json")


@pytest.mark.slow
def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    model, out = save_tiny_model(tmp_path, 1024), tmp_path / "long.json"
    long.run(cases=["2x20"], ways=["generate"], model=model, out=out)
    first = json.loads(out.read_text())["rows"]
    long.run(cases=["2x20", "2x10"], ways=["generate"], model=model, out=out)
    rows = json.loads(out.read_text())["rows"]
    assert rows[:1] == first and [row["case"] for row in rows] == ["2x20", "2x10"]
    assert [row["written"] for row in rows] == [20, 10]


@pytest.mark.slow
def test_generate_is_stopped_in_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long, "GENERATE_S", 0.05)
    long.run_case("generate", "2x900", model=save_tiny_model(tmp_path, 1024))
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < figures["written"] < 900 and figures["step_ms"] > 0
