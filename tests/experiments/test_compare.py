"""`python -m experiments.compare`: rows, what they cost, how they differ, and what is refused."""

from __future__ import annotations

import csv
import json
import math
import re
from itertools import product
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import yaml

from experiments.cli.labels import labels
from experiments.cli.tables import Table, page
from experiments.eval.compare.command import compare, main, parsed
from experiments.eval.compare.figures import frontier, pair_figures
from experiments.eval.compare.rows import load_rows, run_folders, short_place
from experiments.eval.compare.show import compared as of_a_sweep
from experiments.eval.compare.show import tables
from experiments.runs.finished import FinishedRun
from experiments.runs.stats import mcnemar, tango, wilson
from experiments.runs.sweep import note_job, row_labels
from tests.helpers.records import candidate, made_up
from ttc import InvalidInput

SETTINGS: dict[str, Any] = {
    "model": {"name": "nobody/knows"},
    "dataset": {"name": "toy", "instruction": "{question}", "chat": None, "answer_kind": "number"},
    "search": {"_target_": "search.BestOfN", "n": 2},
    "verifier": {"_target_": None},
    "run": {"seed": 0, "batch": 2},
}


def record(name: str, *marks: int, **changes: Any) -> dict[str, Any]:
    """A problem with a branch for each mark; the first was chosen."""
    branches = [candidate(i, "1" if mark else "2", bool(mark)) for i, mark in enumerate(marks)]
    asked = f"what is {name}?"
    return made_up(*branches, id=name, question=asked, gold="1", prompt=asked) | changes


def save(
    place: Path,
    name: str,
    records: list[dict[str, Any]],
    summary: dict[str, Any] | None = None,
    **settings: Any,
) -> str:
    """A run's folder. settings: dotted keys with __ for the dot."""
    folder = place / name
    folder.mkdir()
    config = json.loads(json.dumps(SETTINGS))
    config["run"]["name"] = name
    for key, value in settings.items():
        group, _, key = key.partition("__")
        config[group][key] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return str(folder)


def compared(place: Path, *words: str) -> dict[str, Any]:
    compare(parsed([*words, "--json", str(place / "found.json")]))
    return json.loads((place / "found.json").read_text())


A, B = [1, 1, 1, 1, 0, 0, 1, 1], [0, 1, 0, 0, 0, 0, 1, 0]


def problems(marks: list[int], **changes: Any) -> list[dict[str, Any]]:
    return [record(f"p{i}", mark, 1 - mark, **changes) for i, mark in enumerate(marks)]


# ---------------------------------------------------------------- figures


def test_two_single_runs_have_wilsons_intervals_and_mcnemars_test(tmp_path: Path) -> None:
    a, b = save(tmp_path, "a", problems(A)), save(tmp_path, "b", problems(B), search__n=4)
    found = compared(tmp_path, a, b)
    first, second = found["rows"]
    assert (first["accuracy"], first["interval"]) == (0.75, "Wilson")
    assert (first["problems"], first["runs"]) == (8, 1)
    assert first["accuracy_95"] == pytest.approx(wilson(6, 8))
    assert (second["generated_tokens"], second["verifier_tokens"]) == (10, 3)
    assert second["kv_peak_bytes"] == 2048
    assert second["flops"] is None and second["seconds"] is None  # nobody knows this model
    (pair,) = found["differences"]
    gaps = [y - x for x, y in zip(A, B, strict=True)]
    assert (pair["row"], pair["against"], pair["difference"]) == ("b", "a", -0.5)
    assert (pair["test"], pair["p"], pair["p_holm"]) == ("McNemar", mcnemar(0, 4), mcnemar(0, 4))
    error = stdev(gaps) / math.sqrt(8)
    assert pair["difference_95"] == pytest.approx(list(tango(0, 4, 8)))
    assert pair["detectable"] == pytest.approx(2.801585 * error)
    assert found["settings"] == {"a": {"search.n": 2}, "b": {"search.n": 4}}


def test_seeds_of_one_configuration_are_one_row_of_means(tmp_path: Path) -> None:
    folders = [
        save(tmp_path, f"a-seed{i}", problems(marks), run__seed=i) for i, marks in enumerate([A, B])
    ]
    other = save(tmp_path, "b", problems(B), search__n=4)
    found = compared(tmp_path, *folders, other)
    row = found["rows"][0]
    means = [(x + y) / 2 for x, y in zip(A, B, strict=True)]
    assert (row["row"], row["seeds"], row["runs"]) == ("a", [0, 1], 2)
    assert row["interval"] == "standard error"
    assert row["accuracy"] == sum(means) / 8
    assert row["standard_error"] == pytest.approx(stdev(means) / math.sqrt(8))
    assert found["differences"][0]["test"] == "z"
    # a tie of two
    assert row["pass_at_k"] == {"1": 0.5, "2": 1.0} and row["maj_at_k"] == {"1": 0.5, "2": 0.5}


def test_questions_of_one_source_are_a_cluster(tmp_path: Path) -> None:
    marks = [1, 1, 1, 1, 0, 0, 0, 0]
    records = [r | {"source": f"passage {i // 4}"} for i, r in enumerate(problems(marks))]
    plain = save(tmp_path, "plain", problems(marks))
    rows = compared(tmp_path, plain, save(tmp_path, "found", records, search__n=4))["rows"]
    assert rows[1]["interval"] == "clustered standard error"
    # two passages, one all right and one all wrong
    assert rows[1]["standard_error"] == pytest.approx(0.5)
    assert rows[0]["accuracy_95"][0] > rows[1]["accuracy_95"][0] == 0.0


def test_a_failed_problem_is_wrong_and_holm_counts_every_pair(tmp_path: Path) -> None:
    broken = [*problems(A)[:-1], record("p7", 1, error="VerifierError: no", branches=[])]
    folders = [save(tmp_path, "a", broken), save(tmp_path, "b", problems(B), search__n=4)]
    folders.append(save(tmp_path, "c", problems(A[::-1]), search__n=8))
    rows = compared(tmp_path, *folders)["rows"]
    assert (rows[0]["accuracy"], rows[0]["failed"]) == (5 / 8, 1)
    pairs = pair_figures(load_rows(list(map(Path, folders))), every=True)
    assert [(p["row"], p["against"]) for p in pairs] == [("b", "a"), ("c", "a"), ("c", "b")]
    lowest = min(p["p"] for p in pairs)
    assert min(p["p_holm"] for p in pairs) == pytest.approx(min(1.0, 3 * lowest))


def test_seeds_on_other_problems_count_each_problem_once(tmp_path: Path) -> None:
    first = save(tmp_path, "a-seed0", [record("p0", 1), record("p1", 0)])
    second = save(tmp_path, "a-seed1", [record("p0", 1)], run__seed=1)
    row = compared(tmp_path, first, second, "--different-problems")["rows"][0]
    assert row["accuracy"] == row["accuracy_strict"] == row["pass_at_k"]["1"] == 0.5


def test_flops_are_two_per_parameter_and_token(tmp_path: Path) -> None:
    summary = {"parameters": {"model": 1000, "verifier": 10}, "seconds": 4.0}
    row = compared(tmp_path, save(tmp_path, "a", problems(A), summary))["rows"][0]
    assert row["flops"] == 2 * (1000 * (10 + 4) + 10 * 3)
    assert row["seconds"] == 0.5


def test_the_frontier_is_what_no_cheaper_row_reaches() -> None:
    assert frontier([(5, 0.5), (1, 0.2), (3, 0.6), (2, 0.2), (9, 0.7), (3, 0.1)]) == [1, 2, 4]


def test_runs_that_are_alike_in_the_seed_too_are_compared_by_their_answers(tmp_path: Path) -> None:
    texts = [dict(r, branches=[dict(b, text="x") for b in r["branches"]]) for r in problems(A)]
    other = [dict(r, branches=[dict(b, text="y") for b in r["branches"]]) for r in texts[:1]]
    folders = [
        save(tmp_path, "once", texts),
        save(tmp_path, "seed1", texts, run__seed=1),
        save(tmp_path, "again", [*other, *texts[1:]], run__batch=8),
        save(tmp_path, "changed", [*texts[:-1], {**texts[-1], "answer": "3"}]),
    ]
    found = compared(tmp_path, *folders)
    assert [row["seeds"] for row in found["rows"]] == [[0, 1], [0], [0]]
    again, changed = found["repeats"]
    assert (again["problems"], again["same_answers"], again["same_texts"]) == (8, 8, 7)
    assert (changed["same_answers"], changed["same_texts"]) == (7, 8)
    assert changed["other_answers"] == ["p7"] and changed["against"] == found["rows"][0]["row"]
    (table,) = [t for t in tables(found) if t.title == "The same configuration, run again"]
    lines = [line[3:] for line in table.lines]
    assert lines == [["8 of 8", "7 of 8", "-"], ["7 of 8", "8 of 8", "p7"]]
    untold = [save(tmp_path, name, problems(A), search__n=4) for name in ("old", "new")]
    assert compared(tmp_path, *untold)["repeats"][0]["same_texts"] is None


def test_the_baseline_is_a_label_or_a_folder(tmp_path: Path) -> None:
    folders = [save(tmp_path, name, problems(A), search__n=n) for n, name in enumerate("abc", 2)]
    for given in ("b", folders[1], folders[1] + "/"):
        found = compared(tmp_path, *folders, "--baseline", given)
        assert [row["row"] for row in found["rows"]] == ["b", "a", "c"]
        assert {pair["against"] for pair in found["differences"]} == {"b"}
    with pytest.raises(InvalidInput, match=r"--baseline=d is none of the rows.*\n  a\n  b\n  c$"):
        compared(tmp_path, *folders, "--baseline", "d")


def test_runs_of_a_sweep_have_its_names_and_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [Path(save(tmp_path, f"toy-n={n}", problems(A), search__n=n)) for n in (8, 2, 4)]
    for number, folder in enumerate(folders):
        note_job(folder, "one", number, ["search=best_of_n", f"search.n={folder.name[-1]}"])
    names = row_labels([["search.n=8"], ["search.n=2"], ["search.n=4"]])
    compare(parsed([str(tmp_path)]))
    text = capsys.readouterr().out
    told = of_a_sweep(folders, names)
    assert "\n\n".join(told.split("\n\n")[:2]) in text
    assert [row.name for row in load_rows([tmp_path])] == ["n=8", "n=2", "n=4"]
    note_job(folders[0], "another", 0, ["search.n=8"])
    assert [row.name for row in load_rows([tmp_path])] == ["toy-n=2", "toy-n=4", "toy-n=8"]


@pytest.mark.parametrize(("columns", "blocks"), [(40, 7), (80, 3), (120, 2), (200, 1)])
def test_tables_are_as_wide_as_the_terminal(
    columns: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    names = [f"column {i:03}" for i in range(14)]
    wide = Table("", names, [names, [name[::-1] for name in names]], ["a note " * 30]).text()
    assert max(map(len, wide.splitlines())) <= columns
    assert len(re.findall("^column 000", wide, re.MULTILINE)) == 2 * blocks


def test_what_is_the_same_in_every_line_is_told_once_but_for_results() -> None:
    rows = [["a", "50%", "4"], ["b", "50%", "4"]]
    text = Table("", ("run", "accuracy", "n"), rows).text()
    assert "in every row: n: 4" in text and re.search(r"\na +50%\nb +50%$", text, re.MULTILINE)


# ---------------------------------------------------------------- what is written


def sweep(place: Path) -> list[str]:
    """The folders of 24 runs with default names, which differ in two settings."""
    folders = []
    for n, temperature in product((1, 2, 4, 8, 16, 32), (0.3, 0.6, 0.8, 1.0)):
        varied = f"search.n={n}-search.temperature={temperature}"
        name = f"toy-best_of_n-seed0-search.max_tokens=2048-{varied}"
        usage = {"generated_tokens": 100 * n, "verifier_tokens": 0, "prompt_tokens": 4}
        done = problems([(5 * i + 10 * temperature) % 9 < 3 + n % 5 for i in range(8)], usage=usage)
        folders.append(save(place, name, done, search__n=n, search__temperature=temperature))
    return folders


@pytest.mark.slow
def test_labels_are_what_differs_and_tables_fit_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = sweep(tmp_path)
    compare(parsed(folders))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("\nn=32 temperature=0.6 ") >= 2
    assert "in every row: " in text and "problems: 8" in text
    for one_name in (tmp_path, tmp_path / "toy-*-search.n=*"):
        compare(parsed([str(one_name)]))
        assert capsys.readouterr().out == text
    assert short_place([Path(folder) for folder in folders]) == [tmp_path]
    first = [Path(folder) for folder in folders if "search.n=8-" in folder]
    assert list(run_folders(short_place(first))) == first and len(short_place(first)) == 1
    with pytest.raises(InvalidInput, match="matches no folder of a run"):
        compared(tmp_path, str(tmp_path / "nothing-*"))


def test_a_sweep_calls_its_rows_in_both_tables_alike(tmp_path: Path) -> None:
    jobs = [
        ["search=best_of_n", f"search.n={n}", f"run.seed={seed}"] for n in (2, 4) for seed in (0, 1)
    ]
    names = row_labels(jobs)
    assert names == ["n=2", "n=2", "n=4", "n=4"]
    folders = [
        Path(save(tmp_path, f"toy-{i}", problems(A if i < 2 else B), search__n=n, run__seed=seed))
        for i, (n, seed) in enumerate(product((2, 4), (0, 1)))
    ]
    text = of_a_sweep(folders, names)
    assert re.search("\nn=4 +n=2 ", text) and "BestOfN" not in text
    assert "\ntoy-2 " in of_a_sweep(folders, [""] * 4)  # names that tell nothing apart are left out


def test_a_class_tells_rows_apart_and_not_its_settings() -> None:
    best = {"search._target_": "search.BestOfN", "search.max_tokens": 64, "verifier._target_": None}
    greedy = best | {"search._target_": "search.Greedy", "search.max_tokens": 32}
    rows = [greedy, best | {"search.n": 2}, best | {"search.n": 4}]
    assert labels(rows) == ["Greedy", "BestOfN n=2", "BestOfN n=4"]
    rated = greedy | {"verifier._target_": "verifiers.Self"}
    assert labels([greedy, rated]) == ["verifier=none", "Self"]


def test_tables_come_as_markdown_and_for_booktabs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = save(tmp_path, "a_1|", problems(A)), save(tmp_path, "b", problems(B), search__n=4)
    compare(parsed([a, b, "--format", "markdown"]))
    assert re.search(r"\| a_1\\\| +\| +75\.0%", capsys.readouterr().out)
    compare(parsed([a, b, "--format", "latex"]))
    text = capsys.readouterr().out
    head = r"\toprule" + "\n" + r"run & accuracy & 95\% interval & strict"
    assert r"\begin{tabular}{lrrrrrrrrrrr}" + "\n" + head in text
    assert r"a\_1| & 75.0\% & " in text and r"\bottomrule" in text


def test_csv_has_the_figures_and_the_settings_that_differ_as_they_are_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ["\n\n", "\n", "\t"]
    folders = [
        save(tmp_path, f"toy-{i}-of-many-runs-with-long-names", problems(marks), **settings)
        for i, (marks, value) in enumerate(zip([A, B, B], values, strict=True))
        for settings in [{"search__delimiter": value, "dataset__end": [value]}]
    ]
    compare(parsed([*folders, "--format", "csv"]))
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["search.delimiter"] for row in rows] == [r"\n\n", r"\n", r"\t"]
    assert [row["dataset.end"] for row in rows] == [r"\n\n", r"\n", r"\t"]
    assert [r"delimiter=\n\n" in row["row"] for row in rows] == [True, False, False]
    assert [float(rows[0]["accuracy"]), float(rows[1]["difference"])] == [0.75, -0.5]
    assert rows[0]["p"] == "" and float(rows[1]["pass_at_k.2"]) == 1.0


def test_labels_can_be_given(tmp_path: Path) -> None:
    a, b = save(tmp_path, "a", problems(A)), save(tmp_path, "b", problems(B), search__n=4)
    rows = compared(tmp_path, a, b, "--labels", "ours,theirs")["rows"]
    assert [row["row"] for row in rows] == ["ours", "theirs"]
    why = r"labels? for 2 rows; give each row one of its own.*\n  a\n  b"
    for wrong in ("ours", "ours,ours"):
        with pytest.raises(InvalidInput, match=why):
            compared(tmp_path, a, b, "--labels", wrong)


@pytest.fixture
def plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure of runs, and the names in its legend."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    drawn: list[Any] = []
    monkeypatch.setattr(pyplot, "close", drawn.append)

    def plot(folders: list[str]) -> tuple[Any, list[str]]:
        compare(parsed([*folders, "--plot", str(tmp_path / "plot.png")]))
        return drawn[0], [text.get_text() for text in drawn[0].legends[0].get_texts()]

    return plot


@pytest.mark.slow
def test_the_names_of_24_rows_leave_the_plot_its_width(tmp_path: Path, plotted: Any) -> None:
    figure, names = plotted(sweep(tmp_path))
    box = figure.axes[0].get_window_extent()
    assert box.width > 0.8 * figure.bbox.width and box.height > 300
    assert names[1] == "n=1 temperature=0.6"


def test_points_that_lie_on_each_other_are_told(tmp_path: Path, plotted: Any) -> None:
    marks = (("a", A), ("b", B), ("c", A))
    folders = [save(tmp_path, name, problems(m), search__n=n) for n, (name, m) in enumerate(marks)]
    assert plotted(folders)[1] == ["a", "b", "c (at a)"]


def test_what_is_written_holds_what_the_screen_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    a, b = save(tmp_path, "a|1", problems(A)), save(tmp_path, "<b>", problems(B), search__n=4)
    out = {form: tmp_path / "made" / f"found.{form}" for form in ("csv", "html", "png")}
    compare(parsed([a, b, f"--csv={out['csv']}", f"--html={out['html']}", f"--plot={out['png']}"]))
    text = capsys.readouterr().out
    assert re.search(r"\na\|1 +75\.0%", text) and "p, Holm" in text
    assert text.startswith("Accuracy and cost") and "Settings that differ" not in text
    compare(parsed([a, b, "--settings"]))
    assert "Settings that differ" in capsys.readouterr().out
    compare(parsed([a, b, "--brief"]))
    brief = capsys.readouterr().out
    assert brief.startswith("Accuracy and cost") and "Differences" not in brief
    compare(parsed([a, b, "--format", "csv"]))
    assert out["csv"].read_text() == capsys.readouterr().out
    page = out["html"].read_text()
    assert "&lt;b&gt;" in page and "<td>75.0%</td>" in page and "<svg" in page
    assert "http" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.S)
    assert out["png"].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidInput, match=r"--plot=.*plot\.zip"):
        compare(parsed([a, b, "--plot", str(tmp_path / "plot.zip")]))


# ---------------------------------------------------------------- what is refused


def test_other_problems_are_refused_by_name_and_paired_where_asked(tmp_path: Path) -> None:
    a, b = save(tmp_path, "a", problems(A)), save(tmp_path, "b", problems(B)[:6], search__n=4)
    with pytest.raises(InvalidInput, match=r"2 problems \(p6, p7\) in .*a alone\n--different-pro"):
        compared(tmp_path, a, b)
    (pair,) = compared(tmp_path, a, b, "--different-problems")["differences"]
    assert (pair["problems"], pair["test"]) == (6, "McNemar")
    changed = [*problems(B)[:7], record("p7", 1, gold="9")]
    c = save(tmp_path, "c", changed, search__n=8)
    with pytest.raises(InvalidInput, match=r"gold answer of 1 problem \(p7\) differs"):
        compared(tmp_path, a, c)
    assert compared(tmp_path, a, c, "--different-problems")["differences"][0]["problems"] == 7
    elsewhere = save(tmp_path, "d", [record(f"q{i}", i % 2) for i in range(6)], search__n=16)
    (pair,) = compared(tmp_path, a, elsewhere, "--different-problems")["differences"]
    assert (pair["problems"], pair["test"], pair["correlation"]) == (0, "z, not paired", None)


def test_other_prompts_are_refused_by_name(tmp_path: Path) -> None:
    a = save(tmp_path, "a", problems(A))
    other = [r | {"prompt": r["prompt"] + " Think."} for r in problems(B)]
    b = save(tmp_path, "b", other, search__n=4)
    why = r"the prompt of 8 problems \(p0, p1, p2 and 5 more\)\n--different-prompts"
    with pytest.raises(InvalidInput, match=why):
        compared(tmp_path, a, b)
    assert compared(tmp_path, a, b, "--different-prompts")["differences"][0]["difference"] == -0.5
    # a chat template of its own: the settings count
    c = save(tmp_path, "c", other, model__name="another")
    assert len(compared(tmp_path, a, c)["rows"]) == 2
    d = save(tmp_path, "d", other, model__name="another", dataset__instruction="Solve: {question}")
    e = save(tmp_path, "e", problems(A), dataset__answer_kind="text")
    for run, why in (
        (d, r"dataset\.instruction: '\{question\}' -> 'Solve: \{question\}'"),
        (e, r"answer_kind, by which answers are graded: 'number' -> 'text'"),
    ):
        with pytest.raises(InvalidInput, match=why):
            compared(tmp_path, a, run)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    a = save(tmp_path, "a", problems(A))
    old = [record("p0", 1), {"id": "p1", "correct": True, "error": None}]
    for folders, why in (
        ([a, a + "/."], "given twice"),
        ([str(tmp_path / "missing")], "is no folder"),
        ([str(tmp_path / "bare")], r"holds no config\.yaml"),
        ([save(tmp_path, "empty", [])], "holds no problem yet"),
        ([save(tmp_path, "foreign", old)], "line 2 has no branches and no usage: another version"),
    ):
        with pytest.raises(InvalidInput, match=why):
            compared(tmp_path, *folders)


def test_runs_of_older_versions_compare(tmp_path: Path) -> None:
    """Before strict grading, prompts, times and fingerprints were kept."""
    late = ("correct_strict", "prompt", "timing")
    old = [{key: value for key, value in r.items() if key not in late} for r in problems(A)]
    new = save(tmp_path, "new", problems(B), search__n=4)
    found = compared(tmp_path, save(tmp_path, "old", old), new)
    row = found["rows"][0]
    assert (row["accuracy"], row["accuracy_strict"], row["kv_peak_bytes"]) == (0.75, 0.75, None)
    assert found["differences"][0]["p"] == mcnemar(0, 4)


def test_private_questions_are_compared_by_their_marks(tmp_path: Path) -> None:
    hidden = {"question": None, "prompt": None}
    a = save(tmp_path, "a", problems(A, **hidden))
    b = save(tmp_path, "b", problems(B, **hidden), search__n=4)
    for folder, mark in ((a, "x"), (b, "y")):
        marks = {f"p{i}": mark if i == 3 else "same" for i in range(8)}
        (Path(folder) / "fingerprint.json").write_text(json.dumps({"data": marks}))
    with pytest.raises(InvalidInput, match=r"gold answer of 1 problem \(p3\) differs"):
        compared(tmp_path, a, b)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("records.jsonl", "[1, 2]\n{}\n"),
        ("records.jsonl", "[" * 100_000 + "\n{}\n"),
        ("records.jsonl", json.dumps(record("a", 1, error=[])) + "\n"),
        ("records.jsonl", json.dumps(record("a", 1, branches=None)) + "\n"),
        ("summary.json", "[]"),
        ("summary.json", "[" * 100_000),
        ("fingerprint.json", '"text"'),
        ("fingerprint.json", '{"data": '),
        ("config.yaml", "!!python/object/apply:os.system ['id']"),
        ("config.yaml", "3"),
        ("config.yaml", "[" * 3000),
    ],
)
def test_a_damaged_file_is_named_in_a_line(tmp_path: Path, file: str, text: str) -> None:
    folder = Path(save(tmp_path, "a", problems(A)))
    (folder / file).write_text(text)
    with pytest.raises(InvalidInput, match=rf"^{re.escape(str(folder / file))}\b.*damaged") as told:
        FinishedRun.load(folder)
    assert "\n" not in str(told.value)


def test_a_model_that_no_hub_could_have_has_no_flops(tmp_path: Path) -> None:
    folder = save(tmp_path, "a", problems(A), model__name="\x1b]52;c;cm0=\x07")
    assert compared(tmp_path, folder)["rows"][0]["flops"] is None


def test_a_folder_of_several_runs_is_announced_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in (2, 4):
        save(tmp_path, f"n{n}", problems(A), search__n=n)
    monkeypatch.setattr("sys.argv", ["compare", str(tmp_path)])
    main()
    assert capsys.readouterr().err == "starting: a comparison of the runs of 1 folder\n"


def test_long_names_without_a_blank_are_broken_on_a_page() -> None:
    """A name of 40 letters left the Differences table wider than a page of 1,300 pixels."""
    name = "experiment_of_the_week_with_a_long_name1"
    made = page("runs", [Table("Differences", ("run", "p"), [[name, "0.5"]])])
    assert f'<td class="long">{name}</td>' in made
    (style,) = re.findall(r"td\.long\{([^}]*)\}", made)
    assert {"white-space:normal", "overflow-wrap:anywhere"} <= set(style.split(";"))
