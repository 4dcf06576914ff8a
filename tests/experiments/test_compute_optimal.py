"""Compute-optimal search: the table fitted from records, what it is worth, and the search that it
becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.fit.compute_optimal import Measurements, best_fixed, fit, parsed, report, two_fold
from experiments.runs.schema import register
from search import BestOfN, solve
from tests.helpers.backends import FakeBackend
from tests.helpers.records import candidate, made_up
from tests.helpers.searches import ByQuestion
from ttc import InvalidInput


def table(problems: int = 40) -> Measurements:
    """Hard problems (ease below 0.5) are solved by strategy 1 alone, for 100 tokens; the others by
    0, for 10."""
    ease = np.linspace(0, 1, problems, endpoint=False)
    hard = ease < 0.5
    return Measurements(
        ease,
        np.full(problems, 5.0),
        np.stack([~hard, hard], axis=1).astype(float),
        np.tile([10.0, 100.0], (problems, 1)),
    )


def test_each_bin_gets_the_strategy_that_is_best_in_it() -> None:
    choice = fit(table(), bins=4, budget=1000)
    assert choice.strategies == [1, 1, 0, 0]
    assert choice.edges == pytest.approx([0.24375, 0.4875, 0.73125])
    assert choice.of(np.array([0.0, 0.3, 0.6, 0.9])).tolist() == [1, 1, 0, 0]
    assert fit(table(), bins=4, budget=104).strategies == [0, 0, 0, 0]  # the estimate's 5 count too
    assert best_fixed(table(), 104) == 0  # as accurate as the other, and cheaper
    with pytest.raises(InvalidInput, match="--budget=3 is less than the 10 tokens of the cheapest"):
        best_fixed(table(), 3)


def test_two_folds_compare_on_problems_that_were_not_fitted_on() -> None:
    found = two_fold(table(400), bins=4, budget=1000, seed=0)
    assert found["fitted"][0] > 0.95 and 0.3 < found["fixed"][0] < 0.6
    assert found["fitted"][3] == pytest.approx(5 + 55, abs=5)
    assert found["difference"][1] > 0.3
    rng = np.random.default_rng(1)
    marks = rng.integers(0, 2, (400, 3)).astype(float)
    noise = Measurements(rng.random(400), np.zeros(400), marks, np.ones((400, 3)))
    low, high = two_fold(noise, bins=5, budget=10, seed=0)["difference"][1:]
    assert low < 0 < high  # where nothing can be learnt, nothing is gained


def test_scores_that_are_all_equal_make_one_bin() -> None:
    marks = np.tile([0.0, 1.0], (20, 1))
    same = Measurements(np.full(20, 0.5), np.zeros(20), marks, np.ones((20, 2)))
    assert fit(same, bins=5, budget=10).of(same.ease).tolist() == [1] * 20


ONE = [(True, 0.5, 1)]
COMMON = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 9}


def written(
    folder: Path,
    rows: list[tuple[bool, float, int]] = ONE,
    model: str = "m",
    max_tokens: int | None = None,
    **search: Any,
) -> Path:
    """The folder of a run. rows: of each problem whether it is right, the first score, and the
    tokens of each of three branches."""
    folder.mkdir(parents=True)
    run = {"seed": 0, "max_tokens": max_tokens}
    search = {"_target_": "search.BestOfN", "aggregation": "last"} | COMMON | search
    config = {"model": {"name": model}, "dataset": {"name": "d"}, "search": search, "run": run}
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    lines = []
    for i, (correct, score, tokens) in enumerate(rows):
        known = [{"score": score + 0.01 * j, "tokens": tokens} for j in range(3)]
        branches = [candidate(j, "1", correct, **more) for j, more in enumerate(known)]
        lines.append(made_up(*branches, id=str(i)))
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    easy = [(i >= 20, i / 40, 10) for i in range(40)]
    hard = [(i < 20, i / 40, 30) for i in range(40)]
    return [str(written(tmp_path / "few", easy, n=3)), str(written(tmp_path / "many", hard, n=7))]


def test_a_table_is_fitted_from_runs_and_runs_as_a_search(
    folders: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "fitted" / "search" / "mine.yaml"
    text = report(parsed([*folders, "--samples", "2", "--bins", "2", "--out", str(out)]))
    assert "40 problems of 40 with 2 scored samples, 2 bins" in text
    assert f"1  {folders[1]}" in text and f"2  {folders[0]}" in text
    assert "by bins      " in text and "difference   +" in text
    register()
    with initialize_config_dir(str(tmp_path / "fitted"), version_base="1.3"):
        search = instantiate(compose("search/mine").search, _convert_="all")
    assert list(search.strategies) == [BestOfN(n=7, max_tokens=9), BestOfN(n=3, max_tokens=9)]
    assert search.edges == pytest.approx([39 / 80 + 0.005])
    result = solve(search, problem="q 0.9", engine=FakeBackend("123456789"), verifier=ByQuestion())
    assert len(result.tree) - 1 == 2 + 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bins=1"], "--bins=1 must be at least 2"),
        (["--samples=4"], "no run has 4 scored samples"),
        (["--samples=2", "--bins=20"], "--bins=20 in two halves takes 80 .*, and there are 40"),
        (["--samples=2", "--budget=5"], "--budget=5 is less than"),
    ],
)
def test_what_cannot_be_fitted_is_named(words: list[str], message: str, folders: list[str]) -> None:
    with pytest.raises(InvalidInput, match=message):
        report(parsed([*folders, *words]))


@pytest.mark.parametrize("key", ["dataset.name", "search._target_", "search.top_p"])
def test_a_setting_that_is_not_there_is_named(key: str, folders: list[str]) -> None:
    file = Path(folders[0]) / "config.yaml"
    config = OmegaConf.load(file)
    group, name = key.split(".")
    del config[group][name]
    OmegaConf.save(config, file)
    with pytest.raises(
        InvalidInput, match=rf"few/config\.yaml has no {key}: another version wrote"
    ):
        report(parsed([*folders, "--samples=2", "--bins=2"]))


def test_records_of_other_versions_are_read_as_far_as_they_go(folders: list[str]) -> None:
    file = Path(folders[0]) / "records.jsonl"
    first, *others = map(json.loads, file.read_text().splitlines())
    first["usage"] = {}
    for branch in first["branches"]:
        del branch["score"]
    file.write_text("".join(json.dumps(record) + "\n" for record in (first, *others)))
    text = report(parsed([*folders, "--samples=2", "--bins=2", f"--out={file.parent / 'o.yaml'}"]))
    assert "39 problems of 40 with 2 scored samples" in text


def test_runs_that_do_not_belong_together_are_named(folders: list[str], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="give two or more folders"):
        report(parsed(folders[:1]))
    with pytest.raises(InvalidInput, match=r"holds no config\.yaml"):
        report(parsed([folders[0], str(tmp_path)]))
    other = written(tmp_path / "other", model="another")
    with pytest.raises(InvalidInput, match=r"other has model another, and .*few has m"):
        report(parsed([folders[0], str(other)]))
    limited = written(tmp_path / "limited", max_tokens=9)
    with pytest.raises(InvalidInput, match=r"was limited by run\.max_tokens=9, which a strategy"):
        report(parsed([folders[0], str(limited)]))
