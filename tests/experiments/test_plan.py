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
    model = ["model=hf", f"model.name={tmp_path / 'model'}"]
    words = [*model, "model.dtype=float32", "model.device=cpu", *overrides]
    return configuration("plan", *words), words


def rows_of(lines: list[str]) -> list[list[str]]:
    """The cells of a table in Markdown, without its head."""
    rows = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:]]


def test_the_search_that_is_planned_for_is_the_one_that_is_configured() -> None:
    beams = BeamSearch(beam_size=3, beam_width=2, step_tokens=16, max_steps=5)
    finishing = DVTS(step_tokens=10, max_steps=3, finish_tokens=100)
    for search, branches, step_tokens, output_tokens in (
        (BestOfN(n=7, max_tokens=90), 7, 90, 90),
        (beams, 6, 16, 16 * 5),
        (Greedy(max_tokens=9), 1, 9, 9),
        (DiversePrompts(n=4, max_tokens=9), 4, 9, 9),
        (finishing, 16, 10, 10 + 10 + 100),
    ):
        needs = {"branches": branches, "step_tokens": step_tokens, "output_tokens": output_tokens}
        assert search_needs(search) == needs


def test_what_is_given_is_not_taken_from_the_search() -> None:
    words = ("search=best_of_n", "search.n=5", "memory.output_tokens=100")
    auto = auto_of(configuration("plan", *words))
    assert auto == Auto(branches=5, output_tokens=100, step_tokens=256, problems=None)
    assert auto.search.step_tokens == 100


def test_the_plan_names_every_way_and_the_command_that_runs_the_fastest(
    tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, words = plan_of(tmp_path, profile, "search=best_of_n", "search.n=4")
    show(config, words)
    lines = capsys.readouterr().out.splitlines()
    assert "4 branches on 512 tokens, 256 tokens each, 256 a step; " in lines[0]
    assert lines[0].endswith("as many problems at once as a run begins**")
    rows = rows_of(lines)
    assert len(rows) == 18 and rows[0][:2] == ["resident", "resident"]
    assert ["streamed", "paged", "1", "-", "-", "-", "-", "-", "too few layers"] in rows
    assert rows[0][2] == str(MOST_ROWS // 4)
    step, of_each = map(float, rows[0][3:5])
    assert of_each == pytest.approx(step / (MOST_ROWS // 4), abs=0.06)
    command = f"fastest: python -m experiments.run {' '.join(words)}"
    assert lines[-1] == f"{command.replace(profile + ' ', '')} placement=resident memory=resident"


def test_a_policy_that_is_named_leaves_nothing_to_plan(tmp_path: Path) -> None:
    config, words = plan_of(tmp_path, "memory=paged")
    with pytest.raises(InvalidInput, match=r"a plan chooses the memory policy; leave memory="):
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
        model = (f"model.name={file}", f"model.quantized={quantized}")
        show(*plan_of(tmp_path, profile, *search, *model))
        line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("| resident"))
        needed.append(float(line.split("|")[6].strip().removesuffix("M")))
    assert size < needed[0] + 0.1 < size + 10 and needed[1] > needed[0] + 4 * size


def test_a_run_that_is_told_its_problems_is_planned_for_these(
    tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("run.batch=3", "memory.problems=3"):
        show(*plan_of(tmp_path, profile, "search=best_of_n", "search.n=4", word))
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].endswith("256 a step; problems at once: 3**")
        assert {row[2] for row in rows_of(lines) if row[-1] != "too few layers"} == {"3"}


def test_a_split_may_be_left_to_auto(
    tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(*plan_of(tmp_path, profile, "placement=split"))
    rows = rows_of(capsys.readouterr().out.splitlines())
    splits = [row[0] for row in rows if row[0].startswith("split")]
    assert len(splits) == 6 and splits[0] == "split 1"
