"""Published figures: the recipes compose, dry-run and are run; ours stand beside theirs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.eval.cells import Cell
from experiments.recipes.published.beside import (
    beside,
    differences,
    estimate,
    listing,
    measure,
    run_name,
)
from experiments.recipes.published.command import cells_of, dry_run, parsed, published
from experiments.recipes.published.recipe import Arm, Recipe
from experiments.recipes.published.recipes import RECIPES
from experiments.runs.build import make_search, resolved
from experiments.runs.finished import FinishedRun
from experiments.runs.hydra_command import composed
from experiments.runs.problem_loop import run
from experiments.runs.records import check_name
from experiments.runs.stats import wilson
from tests.experiments.test_compare import record, save
from tests.helpers.runs import ROWS, save_model, save_rows
from ttc import InvalidInput

ARMS = [(recipe, arm) for recipe in RECIPES.values() for arm in recipe.arms]
ROW_OF = {
    "math500": {"problem": "1 + 1?", "solution": "\\boxed{2}", "answer": "2", "level": 1},
    "competition": {"id": 60, "problem": "1 + 1?", "solution": "2", "answer": "002"},
    "gsm8k": {"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2"},
    "gpqa": {
        "Question": "1 + 1?",
        "Correct Answer": "2",
        "Incorrect Answer 1": "1",
        "Incorrect Answer 2": "3",
        "Incorrect Answer 3": "4",
    },
}
"""A row of each data set with the columns that the hub has."""


QUICK = ("particle_filter", "budget_forcing")


def kinds() -> list[Any]:
    """An arm of each kind: a preset, and the settings beside it by their names. Most are slow."""
    chosen: dict[tuple[str, ...], Arm] = {}
    for _, arm in reversed(ARMS):
        preset, *settings = arm.settings
        chosen[(preset, *(word.partition("=")[0] for word in settings))] = arm
    names = [kind[0].rpartition("/")[2] for kind in chosen]
    return [
        pytest.param(
            arm,
            id=arm.name,
            marks=() if name in QUICK and name not in names[:place] else pytest.mark.slow,
        )
        for place, (name, arm) in enumerate(zip(names, chosen.values(), strict=True))
    ]


def dry(arm: Arm, place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What an arm would do, with the columns of the hub in a file and a small tokenizer."""
    config = composed([*arm.settings, "run.name=x"])
    search, verifier = make_search(resolved(config))
    assert search.needs_verifier == (verifier is not None)
    file = place / "rows.jsonl"
    file.write_text(json.dumps(ROW_OF[config.dataset.reader]) + "\n")
    shots = place / "shots.jsonl"
    shots.write_text(
        "".join(
            json.dumps({"question": f"{i}?", "answer": f"{i}\n#### {i}"}) + "\n" for i in range(8)
        )
    )
    here = [f"dataset.path={file}", f"dataset.shots_path={shots}", "model.name=smollm2-135m"]
    dry_run([Cell("arm", {}, 0, [*arm.settings, *here, "run.name=x"])])
    return capsys.readouterr().out


@pytest.mark.parametrize("arm", kinds())
def test_an_arm_composes_and_shows_its_prompts(
    arm: Arm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = dry(arm, tmp_path, capsys)
    assert "--- 1 problem, 0 rows that cannot be used ---" in text and "gold answer" in text
    assert "???" not in text.partition("--- prompt")[0]


def test_names_measures_and_values_of_the_recipes_can_be_used() -> None:
    for name, recipe in RECIPES.items():
        assert recipe.name == name and recipe.tokens > 0 and recipe.source and recipe.setting
        names = [run_name(arm, 0) for arm in recipe.arms]
        assert len(set(names)) == len(names) and names == [*map(check_name, names)]
        for arm in recipe.arms:
            assert arm.published
            for figure, value in arm.published.items():
                measure(figure)
                assert 0 <= value <= 100
    with pytest.raises(InvalidInput, match="measure 'best' is unknown"):
        measure("best")


def test_the_system_text_is_search_and_learns_to_the_letter() -> None:
    system = composed(["+experiment=published/greedy", "run.name=x"]).dataset.system
    assert system.startswith(
        "Solve the following math problem efficiently and clearly:\n\n- For simple"
    )
    assert (
        "\n\nTherefore, the final answer is: $\\boxed{answer}$. I hope it is correct.\n\n" in system
    )
    assert system.endswith("expression that solves the problem.")


# ---------------------------------------------------------------- ours beside theirs


def toy(**changes: Any) -> Recipe:
    arm = Arm("a", ("search=greedy",), {"accuracy": 75.0}, 4)
    recipe = Recipe("r", "title", "the paper", "its code", ("a prompt",), 10, "why", (arm,))
    return replace(recipe, **changes)


def runs(place: Path, name: str, rights: list[bool]) -> FinishedRun:
    save(place, name, [record(f"p{i}", right) for i, right in enumerate(rights)])
    return FinishedRun.load(place / name)


def test_a_line_has_their_value_ours_its_interval_and_where_theirs_lies(tmp_path: Path) -> None:
    recipe = toy()
    (line,) = beside(recipe, tmp_path, recipe.arms).lines
    assert line[3:] == ["-", "-", "0", "-"]
    runs(tmp_path, "a-seed0", [True, True, False, False])
    (line,) = beside(recipe, tmp_path, recipe.arms).lines
    low, high = wilson(2, 4)
    assert line[:2] == ["a", "accuracy"] and line[2].startswith("75.0%")
    assert line[3:] == ["50.0%", f"{low:.1%} to {high:.1%}", "4 of 4", "inside"]
    low, _ = wilson(3, 4)
    assert f"({100 * low:.1f}" in line[2]


@pytest.mark.parametrize(("right", "verdict"), [(40, "below"), (0, "above")])
def test_a_value_outside_of_our_interval_is_said(tmp_path: Path, right: int, verdict: str) -> None:
    recipe = toy(arms=(Arm("a", (), {"accuracy": 50.0}, 40),))
    runs(tmp_path, "a-seed0", [i < right for i in range(40)])
    assert beside(recipe, tmp_path, recipe.arms).lines[0][-1] == verdict


def test_shards_and_seeds_are_one_figure_and_a_merged_run_takes_its_shards_place(
    tmp_path: Path,
) -> None:
    recipe = toy(arms=(Arm("a", (), {"accuracy": 50.0}, 4, seeds=2),))
    save(tmp_path, "a-seed0-shard1of2", [record("p0", True)])
    save(tmp_path, "a-seed0-shard2of2", [record("p1", False)])
    save(tmp_path, "a-seed1", [record("p0", True), record("p1", True)])
    (line,) = beside(recipe, tmp_path, recipe.arms).lines
    assert line[3] == "75.0%" and line[5] == "4 of 8"
    save(tmp_path, "a-seed0", [record("p0", False), record("p1", False)])
    (line,) = beside(recipe, tmp_path, recipe.arms).lines
    assert line[3] == "50.0%" and line[5] == "4 of 8"


def test_measures_of_samples_are_those_of_the_records(tmp_path: Path) -> None:
    """Of four candidates the first is best rated and wrong; two of the others agree and are
    right."""
    whole = record("p", False)
    answers, scores = ["1", "2", "2", "3"], [0.9, 0.5, 0.5, 0.1]
    (branch,) = whole["branches"]
    whole["branches"] = [
        branch
        | {"path": [i], "answer": answer, "vote": answer, "score": score, "correct": answer == "2"}
        for i, (answer, score) in enumerate(zip(answers, scores, strict=True))
    ]
    save(tmp_path, "r", [whole])
    samples = FinishedRun.load(tmp_path / "r")
    expected = {"pass@1": 0.5, "pass@4": 1.0, "maj@4": 1.0, "naive@4": 0.0, "weighted@4": 1.0}
    expected |= {"naive@1": 0.0, "weighted@1": 0.0, "naive@2": 0.0}
    for name, value in expected.items():
        assert estimate([samples], name).mean == pytest.approx(value), name


def test_settings_of_a_run_that_are_not_the_recipes_are_told(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", ROWS)
    arm = Arm(
        "a",
        (
            "model=hf",
            f"model.name={tmp_path / 'model'}",
            "dataset=file",
            f"dataset.path={tmp_path / 'rows.jsonl'}",
            "search=greedy",
            "search.max_tokens=3",
        ),
        {"accuracy": 0.0},
        4,
    )
    recipe = toy(arms=(arm,))
    settings = ["model.dtype=float32", "dataset.limit=2"]
    words = cells_of(arm, tmp_path, settings)[0].overrides
    run(composed(words))
    assert (tmp_path / "a-seed0" / "summary.json").is_file()
    told = differences(recipe, tmp_path, recipe.arms)
    assert told == [
        "a prompt",
        "a: dataset.limit: None -> 2",
        "a: model.dtype: 'auto' -> 'float32'",
    ]
    assert beside(recipe, tmp_path, recipe.arms).lines[0][5] == "2 of 4"


# ---------------------------------------------------------------- the command


def test_the_list_names_every_recipe_with_its_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert published(parsed([])) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in RECIPES) and "tokens" in out
    table = listing(list(RECIPES.values()))
    s1 = next(line for line in table.lines if line[0] == "s1")
    chains = 5 * 30 + 3 * 500 + 3 * 198
    assert s1[2:] == ["11", f"{chains / 1000:.3g}k", f"{chains * 8000 / 1e6:.3g}M"]


def test_a_recipe_is_shown_without_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert published(parsed(["s1", "--arms", "aime24-0*", "--out", str(tmp_path)])) == 0
    out = capsys.readouterr().out
    assert "issues/19" in out and "50.0%" in out and "gpt-4o-mini" in out
    with pytest.raises(InvalidInput, match="recipe 'nothing' is unknown; use one of"):
        published(parsed(["nothing"]))
    with pytest.raises(InvalidInput, match=r"matches none of aime24-0-waits"):
        published(parsed(["s1", "--arms", "no*"]))


def test_an_arm_that_cannot_run_is_named_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["s1", "--run", "--arms", "aime24-0*", "--out", str(tmp_path)]
    nowhere = f"model.name={tmp_path / 'nowhere'}"
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW_OF["competition"]) + "\n")
    assert published(parsed([*words, nowhere, f"dataset.path={tmp_path / 'rows.jsonl'}"])) == 1
    assert "1 of 1 run could not be made" in capsys.readouterr().out
