"""`python -m experiments.plan`, and runs with memory=auto, on a profile with made-up figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import experiments.runs.build
from experiments.runs.auto_memory import auto_of, search_needs
from experiments.runs.plan import show
from experiments.standins.random_gguf import Shape, write_llama
from search import DVTS, BeamSearch, BestOfN, DiversePrompts, Greedy
from tests.helpers.configurations import configuration
from tests.helpers.parts import only_with
from tests.helpers.placements import write_profile
from tests.helpers.runs import ROWS, save_model, save_rows
from ttc import Auto, InvalidInput
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.profile_file import read
from ttc.tree.branch import MOST_ROWS


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The setting that names a profile; a model and rows lie beside it."""
    save_model(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", ROWS)
    monkeypatch.setattr(experiments.runs.build, "last_loaded", {})
    monkeypatch.setattr("ttc.placement.auto.read_now", read)  # as it is written
    device = DeviceProfile(name="cpu float32", bandwidth=1e9, flops={1: 1e10})
    link = LinkProfile(to_device_bandwidth=1e9, to_host_bandwidth=1e9)
    return f"memory.profile={write_profile(tmp_path / 'profile.json', [device], link)}"


def plan_of(tmp_path: Path, *overrides: str) -> Any:
    words = [
        "model=hf",
        f"model.name={tmp_path / 'model'}",
        "model.dtype=float32",
        "model.device=cpu",
        *overrides,
    ]
    return configuration("plan", *words), words


def test_the_search_that_is_planned_for_is_the_one_that_is_configured() -> None:
    assert search_needs(BestOfN(n=7, max_tokens=90)) == {
        "branches": 7,
        "step_tokens": 90,
        "output_tokens": 90,
    }
    found = {"branches": 6, "step_tokens": 16, "output_tokens": 16 * 5}
    assert search_needs(BeamSearch(beam_size=3, beam_width=2, step_tokens=16, max_steps=5)) == found
    assert search_needs(Greedy(max_tokens=9))["branches"] == 1
    assert search_needs(DiversePrompts(n=4))["branches"] == 4
    assert search_needs(DVTS())["branches"] == 16
    assert (
        search_needs(DVTS(step_tokens=10, max_steps=3, finish_tokens=100))["output_tokens"]
        == 10 + 10 + 100
    )


def test_what_is_given_is_not_taken_from_the_search() -> None:
    auto = auto_of(
        configuration("plan", "search=best_of_n", "search.n=5", "memory.output_tokens=100")
    )
    assert auto == Auto(branches=5, output_tokens=100, step_tokens=256, problems=None)
    assert auto.search.step_tokens == 100


def test_the_plan_names_every_way_and_the_command_that_runs_the_fastest(
    tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, words = plan_of(tmp_path, profile, "search=best_of_n", "search.n=4")
    show(config, words)
    lines = capsys.readouterr().out.splitlines()
    assert (
        "4 branches on 512 tokens, 256 tokens each, 256 a step; as many problems at once as a run "
        "begins" in lines[0]
    )
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")
    ][2:]
    assert len(rows) == 18 and rows[0][:2] == ["resident", "resident"]
    assert ["streamed", "paged", "1", "-", "-", "-", "-", "-", "too few layers"] in rows
    assert rows[0][2] == str(MOST_ROWS // 4)
    step, of_each = map(float, rows[0][3:5])
    assert of_each == pytest.approx(step / (MOST_ROWS // 4), abs=0.06)
    assert lines[-1].startswith("fastest: python -m experiments.run model=hf") and lines[
        -1
    ].endswith("search=best_of_n search.n=4 placement=resident memory=resident")


def test_a_policy_that_is_named_leaves_nothing_to_plan(tmp_path: Path) -> None:
    config, words = plan_of(tmp_path, "memory=paged")
    with pytest.raises(
        InvalidInput, match=r"a plan chooses the memory policy; leave memory=\.\.\. out"
    ):
        show(config, words)


@pytest.mark.slow
@only_with("quantized", "True")
def test_a_plan_counts_the_bytes_of_stored_weights(
    tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.gguf"
    write_llama(file, "Q4_0", Shape(width=512, layers=6))
    size = file.stat().st_size / 1e6
    needed = []
    for quantized in ("true", "false"):
        search = ("search=greedy", "search.max_tokens=16", "memory.prompt_tokens=16", "run.batch=2")
        config, words = plan_of(
            tmp_path, profile, *search, f"model.name={file}", f"model.quantized={quantized}"
        )
        show(config, words)
        line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("| resident"))
        needed.append(float(line.split("|")[6].strip().removesuffix("M")))
    assert size < needed[0] + 0.1 < size + 10 and needed[1] > needed[0] + 4 * size


def test_a_run_that_is_told_its_problems_is_planned_for_these(
    tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("run.batch=3", "memory.problems=3"):
        config, words = plan_of(tmp_path, profile, "search=best_of_n", "search.n=4", word)
        show(config, words)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].endswith("256 a step; problems at once: 3**")
        rows = [
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in lines
            if line.startswith("|")
        ][2:]
        assert {row[2] for row in rows if row[-1] != "too few layers"} == {"3"}


def test_a_split_may_be_left_to_auto(
    tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, words = plan_of(tmp_path, profile, "placement=split")
    show(config, words)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| split")]
    assert len(rows) == 6 and rows[0].startswith("| split 1")
