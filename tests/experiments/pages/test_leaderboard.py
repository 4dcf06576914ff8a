"""Leaderboards: what a file asks for, one run per cell, killed and gone on, and the rows that are
published."""

from __future__ import annotations

import csv
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.pages.leaderboard.board import predictions_right, write_predictions
from experiments.pages.leaderboard.command import leaderboard, parsed
from experiments.pages.leaderboard.plan import read_plan
from experiments.runs.finished import FinishedRun
from experiments.runs.overrides import as_override
from tests.experiments.test_compare import record, save
from tests.helpers.processes import run_until_killed
from tests.helpers.runs import ROWS
from tests.helpers.tiers import examples
from ttc import InvalidInput


def board(place: Path, name: str, **changes: Any) -> Path:
    """A file of two searches, one with two seeds' worth of candidates, on the tiny model and four
    sums."""
    tiny = {"name": "tiny", "model": "hf", "model.name": str(place / "model")}
    bon = {"name": "bon", "search": "best_of_n", "search.n": 4, "verifier": "confidence"}
    rows = str(place / "rows.jsonl")
    asked = {
        "name": name,
        "models": [tiny | {"model.dtype": "float32"}],
        "datasets": [{"name": "sums", "dataset": "file", "dataset.path": rows}],
        "searches": ["greedy", bon],
        "budgets": [{"search.max_tokens": 3}],
        "seeds": [0, 1],
        "settings": {"run.batch": 2, "dataset.instruction": "{question}"},
        "output_dir": str(place / "outputs"),
    } | changes
    file = place / f"{name}.yaml"
    file.write_text(yaml.safe_dump(asked))
    return file


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    """Every record of a board without its times."""
    found = {}
    for file in folder.glob("*/records.jsonl"):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            del record["timing"]
            found[f"{file.parent.name}/{record['id']}"] = record
    return found


@pytest.mark.slow
def test_every_cell_is_a_run_and_has_a_row(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leaderboard(parsed([str(board(place, "all"))])) == 0
    folder = place / "outputs" / "all"
    names = [
        f"tiny-sums-{search}-search.max_tokens=3-seed{seed}"
        for search in ("greedy", "bon")
        for seed in (0, 1)
    ]
    assert sorted(path.parent.name for path in folder.glob("*/summary.json")) == sorted(names)
    made = json.loads((folder / "leaderboard.json").read_text())
    assert [Path(row["folder"]).name for row in made["rows"]] == names and made["errors"] == {}
    greedy, _, bon, _ = made["rows"]
    assert (bon["model"], bon["dataset"], bon["search"], bon["seed"]) == ("tiny", "sums", "bon", 0)
    assert (bon["problems"], bon["settings"]["search.n"], bon["settings"]["run.batch"]) == (4, 4, 2)
    for made_of in ("data_fingerprint", "prompt_fingerprint"):
        assert greedy[made_of] == bon[made_of]
    assert ROWS[0]["question"] in bon["prompt"] and bon["commit"]
    assert {"torch", "transformers", "python"} <= bon["made_by"][0]["machine"].keys()
    assert bon["flops"] > 0 and bon["kv_peak_bytes"] > 0
    rules = product(("naive", "weighted", "maj"), (1, 2, 4))
    assert {f"pred_{rule}@{n}" for rule, n in rules} <= bon.keys()
    assert "pred_naive@1" not in greedy and greedy["pred_maj@1"] == greedy["accuracy"]
    rows = list(csv.DictReader((folder / "leaderboard.csv").open()))
    assert [row["seed"] for row in rows] == ["0", "1", "0", "1"]
    assert rows[2]["settings.search.n"] == "4"
    text, page = capsys.readouterr().out, (folder / "leaderboard.html").read_text()
    assert text.startswith("sums\n") and "\nEvery run\n" in text and "<h2>sums</h2>" in page
    assert (folder / "leaderboard.md").read_text().startswith("**sums**")
    assert max(map(len, text.splitlines())) <= 80 and "\nbon " in text
    leaderboard(parsed([str(place / "all.yaml"), "--format", "csv"]))
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["row"], row["search.n"]) for row in rows[1:3]] == [("greedy", ""), ("bon", "4")]
    leaderboard(parsed([str(place / "all.yaml"), "--labels", "one answer,four answers"]))
    assert "\nfour answers " in capsys.readouterr().out
    rows = list(csv.DictReader((folder / "leaderboard.csv").open()))
    assert [row["row"] for row in rows[1:3]] == ["one answer", "four answers"]
    lines = (folder / "predictions" / f"{names[2]}.jsonl").read_text().splitlines()
    assert len(lines) == 4 and json.loads(lines[0])["answer"] == "0"


@pytest.mark.parametrize("labels", ["one", "one,one", "one,two,three", "one,"])
def test_labels_that_do_not_fit_the_rows_are_refused(place: Path, labels: str) -> None:
    arguments = parsed([str(board(place, "named")), "--labels", labels])
    message = re.escape(f"--labels={labels} has") + ".* in this order:\n  greedy\n  bon$"
    with pytest.raises(InvalidInput, match=message):
        leaderboard(arguments)


@pytest.mark.slow
def test_a_killed_leaderboard_goes_on_to_the_same_rows(place: Path) -> None:
    killed = board(place, "killed")
    folder = place / "outputs" / "killed"
    run_until_killed("experiments.leaderboard", 6, str(killed))
    before = answers(folder)
    assert len(before) == 9  # greedy's second seed is copied, in one piece
    assert leaderboard(parsed([str(killed)])) == 0
    assert leaderboard(parsed([str(board(place, "whole"))])) == 0
    found = answers(folder)
    assert len(found) == 16 and found == answers(place / "outputs" / "whole")
    assert {name: found[name] for name in before} == before
    files = {path: path.stat().st_mtime_ns for path in folder.glob("*/records.jsonl")}
    leaderboard(parsed([str(killed)]))  # nothing is left to do
    assert files == {path: path.stat().st_mtime_ns for path in folder.glob("*/records.jsonl")}


@pytest.mark.slow
def test_results_of_other_settings_are_no_row(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def searches(n: int) -> list[Any]:
        return ["greedy", {"name": "bon", "search": "best_of_n", "search.n": n}]

    assert leaderboard(parsed([str(board(place, "two", seeds=[0], searches=searches(2)))])) == 0
    assert leaderboard(parsed([str(board(place, "two", seeds=[0], searches=searches(4)))])) == 1
    folder = place / "outputs" / "two"
    made = json.loads((folder / "leaderboard.json").read_text())
    assert [row["search"] for row in made["rows"]] == ["greedy"]
    for name in ("leaderboard.md", "leaderboard.html"):
        said = (folder / name).read_text()
        assert "could not be run" in said and "another configuration" in said
    assert "1 of 2 cells could not be run" in capsys.readouterr().out


@pytest.mark.slow
def test_a_cell_that_cannot_run_leaves_the_others_their_rows(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [{"name": "missing", "model": "hf", "model.name": str(place / "nowhere")}]
    file = board(place, "some", seeds=[0], searches=["greedy"])
    models = [*models, *yaml.safe_load(file.read_text())["models"]]
    file = board(place, "some", seeds=[0], searches=["greedy"], models=models)
    assert leaderboard(parsed([str(file)])) == 1
    made = json.loads((place / "outputs" / "some" / "leaderboard.json").read_text())
    assert [row["model"] for row in made["rows"]] == ["tiny"]
    assert list(made["errors"]) == ["missing-sums-greedy-search.max_tokens=3-seed0"]
    assert "1 of 2 cells could not be run" in capsys.readouterr().out


def test_the_published_predictions_are_those_of_the_first_n_candidates(tmp_path: Path) -> None:
    def branches(*rows: tuple[str, bool, float]) -> list[dict[str, Any]]:
        return [
            {"path": [i], "answer": a, "correct": c, "score": s, "tokens": 1}
            for i, (a, c, s) in enumerate(rows)
        ]

    first = branches(("7", True, 0.2), ("8", False, 0.9), ("7.0", True, 0.8), ("8", False, 0.05))
    second = branches(("1", False, 0.5), ("2", True, 0.4), ("2", True, 0.2), ("3", False, 0.1))
    chosen_first = [first[i] for i in (1, 0, 2, 3)]  # records begin with the branch that was chosen
    records = [record("a", 1, branches=chosen_first), record("b", 1, branches=second)]
    run = FinishedRun.load(Path(save(tmp_path, "r", records)))
    assert predictions_right(run) == {
        "pred_naive@1": 0.5,  # 7; 1
        "pred_weighted@1": 0.5,
        "pred_maj@1": 0.5,
        "pred_naive@2": 0.0,  # 8; 1
        "pred_weighted@2": 0.0,
        "pred_maj@2": 0.5,  # of two answers the first
        "pred_naive@4": 0.0,
        "pred_weighted@4": 1.0,  # 7 with 1.0 against 0.95; 2 with 0.6 against 0.5
        "pred_maj@4": 1.0,
    }
    write_predictions(run, tmp_path / "p.jsonl")
    line = json.loads((tmp_path / "p.jsonl").read_text().splitlines()[0])
    assert (line["unique_id"], line["answer"]) == ("a", "1")
    assert line["pred_naive@4"] == r"\boxed{8}" and line["pred_weighted@4"] == r"\boxed{7.0}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": []}, r"models is \[\]; give a list"),
        ({"search": ["greedy"]}, "'search' is unknown; is it searches. use one of name, models"),
        ({"searches": ["greed"]}, "'greed' is unknown; is it greedy. use one of .*greedy"),
        ({"searches": ["fork_think"]}, "searches: search=fork_think was removed; use "),
        ({"seeds": ["one"]}, r"seeds is \['one'\]"),
        ({"budgets": ["much"]}, "'much' is neither a number of tokens"),
        ({"budgets": 500}, "budgets is 500; give a list"),
        ({"searches": ["greedy", "greedy"]}, "two cells are called tiny-sums-greedy"),
        ({"settings": {"run.seed": 3}}, r"run\.seed is set by the leaderboard itself"),
        ({"settings": [1]}, "no mapping of settings"),
        ({"name": "a/b"}, "not the name of one folder"),
    ],
)
def test_a_file_that_is_wrong_is_refused(
    place: Path, changes: dict[str, Any], message: str
) -> None:
    file = place / "wrong.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(board(place, "right").read_text()) | changes))
    with pytest.raises(InvalidInput, match=message):
        read_plan(file)


@pytest.mark.slow
def test_a_wrong_setting_is_refused_before_anything_runs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searches = ["greedy", {"search": "best_of_n", "search.many": 3}]
    with pytest.raises(
        InvalidInput,
        match=r"the cell tiny-sums-best_of_n-search\.many=3-.*search\.many is no setting",
    ):
        leaderboard(parsed([str(board(place, "wrong", searches=searches))]))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"searches": ["greedy", {"search": "best_of_n", "search.n": 0}]}, "n=0 must be at"),
        ({"budgets": [500, -1]}, "max_tokens=-1 must be at"),
        ({"datasets": [{"dataset": "file", "dataset.path": "nope.jsonl"}]}, "nope.jsonl"),
    ]
    for changes, message in wrong:
        with pytest.raises(InvalidInput, match=message):
            leaderboard(parsed([str(board(place, "wrong", **changes)), "--dry"]))
    assert not (place / "outputs").exists()
    assert leaderboard(parsed([str(board(place, "fine")), "--dry"])) == 0
    assert capsys.readouterr().out.count("tiny-sums-") == 4 and not (place / "outputs").exists()
    for text, message in (("- 1", "must be a mapping"), ("a: [", "is not YAML")):
        (place / "bad.yaml").write_text(text)
        with pytest.raises(InvalidInput, match=message):
            read_plan(place / "bad.yaml")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_plan(place / "none.yaml")


def test_models_by_name_and_budgets_by_number(place: Path) -> None:
    one = {"budgets": [500], "seeds": [7], "searches": ["greedy"]}
    models = ["smollm2", "Qwen/Qwen3-0.6B"]
    cells = read_plan(board(place, "names", models=models, **one)).cells
    assert [cell.name for cell in cells] == [
        "smollm2-sums-greedy-500tokens-seed7",
        "Qwen_Qwen3-0.6B-sums-greedy-500tokens-seed7",
    ]
    assert {"model.name='Qwen/Qwen3-0.6B'", "run.max_tokens=500"} <= {*cells[1].overrides}


def test_rows_are_called_by_what_they_differ_in(place: Path) -> None:
    changes = {
        "models": ["smollm2", "Qwen/Qwen3-0.6B"],
        "searches": [
            "greedy",
            {"search": "best_of_n", "search.n": 4},
            {"search": "best_of_n", "search.n": 16},
            {"name": "ours", "search": "dvts"},
        ],
        "budgets": [500],
        "seeds": [7],
    }
    titles = [cell.title for cell in read_plan(board(place, "titles", **changes)).cells]
    searches = ["greedy", "best_of_n n=4", "best_of_n n=16", "ours"]
    assert titles == [f"{m} {s}" for m in ("smollm2", "Qwen3-0.6B") for s in searches]
    one = read_plan(board(place, "one", searches=["greedy"], seeds=[0, 1])).cells
    assert {cell.title for cell in one} == {"greedy"}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=4,
)


@given(values)
@settings(max_examples=examples(80))
def test_values_reach_hydra_as_they_are(value: Any) -> None:
    parser = OverridesParser.create()
    read = parser.parse_override(f"a.b={as_override(value)}").value()
    assert plain(read) == value


def plain(value: Any) -> Any:
    """Without Hydra's wrapping of quoted strings."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return getattr(value, "text", value)


@pytest.mark.slow
def test_another_leaderboard_of_the_same_name_replaces_no_tables(place: Path) -> None:
    assert leaderboard(parsed([str(board(place, "one", seeds=[0]))])) == 0
    file = place / "outputs" / "one" / "leaderboard.json"
    written = file.read_text()
    with pytest.raises(InvalidInput, match="is a leaderboard of other cells, as tiny-sums-greedy"):
        leaderboard(parsed([str(board(place, "one", seeds=[0], searches=["self_consistency"]))]))
    assert file.read_text() == written
    assert leaderboard(parsed([str(board(place, "one", seeds=[0, 1]))])) == 0  # more of the same


def test_a_plan_with_aliases_is_refused(tmp_path: Path) -> None:
    """A few lines of them stand for more values than any memory holds."""
    (tmp_path / "bomb.yaml").write_text("name: &x [1, 1]\nmodels: &y [*x, *x]\nseeds: [*y, *y]")
    with pytest.raises(InvalidInput, match=r"bomb\.yaml holds an alias"):
        read_plan(tmp_path / "bomb.yaml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 9000, "lie more than 100 deep"),
        ("a: " + "{a: " * 9000, "lie more than 100 deep"),
        ("seeds: [" + "1" * 5000 + "]", "is not YAML: Exceeds the limit"),
        ("name: 2001-99-99", "is not YAML: month must be"),
        ("seeds: [0b_]", "is not YAML: invalid literal"),
        ('name: "\\ud800"', "holds half of a pair"),
    ],
)
def test_a_plan_that_no_reader_can_take_is_refused_at_once(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=rf"odd\.yaml .*{reason}"):
        read_plan(tmp_path / "odd.yaml")
