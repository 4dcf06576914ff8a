"""`python -m experiments.select`: rules scored on records, by hand-made ones and on the folder of a
real run."""

from __future__ import annotations

import json
import math
import re
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import experiments.eval.select
from experiments.eval.select import ANY, Solved, load, parsed, report, score, subsets
from experiments.runs.problem_loop import run
from experiments.runs.records import own_figures
from experiments.runs.stats import wilson
from experiments.runs.summary import summarise
from search.selection import all_rules
from tests.helpers.engines import make_engine
from tests.helpers.records import candidate, made_up, records
from tests.helpers.runs import composed
from ttc import InvalidInput
from ttc.results import BranchRecord

RULES = {rule.name: rule for rule in all_rules(temperature=0.5)}


def record(id: str, *branches: dict[str, Any], error: str | None = None) -> dict[str, Any]:
    return made_up(*branches, id=id, error=error)


def written(folder: Path, *found: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in found))
    return folder


def accuracies(rows: list[dict[str, Any]], rule: str) -> list[float]:
    return [row["accuracy"] for row in rows if row["rule"] == rule]


FOUR = [("7", True, 0.9), ("8", False, 0.4), ("8", False, 0.3), ("7", True, 0.2)]


def two_problems() -> list[Solved]:
    """One whose right answers come first and last, and one that failed. The records lie in the
    order of the score."""
    branches = [candidate(i, a, c, score=s) for i, (a, c, s) in enumerate(FOUR)]
    return [
        Solved.of_record(record("a", *branches[::-1])),
        Solved.of_record(record("b", error="broken")),
    ]


def test_each_rule_is_scored_on_the_first_n_by_index_and_failures_count_as_wrong() -> None:
    names = ("majority", "weighted", "best", "soft_best")
    rows = score(two_problems(), [RULES[name] for name in names])
    # 7; 7 and 8; 7, 8 and 8; a tie, that 7 began
    assert accuracies(rows, "majority") == [0.5, 0.5, 0, 0.5]
    assert accuracies(rows, "weighted") == [0.5, 0.5, 0.5, 0.5]  # 0.9 against 0.4, 0.7; then 1.1
    assert accuracies(rows, "best") == accuracies(rows, ANY) == [0.5] * 4
    weights = [math.exp(s / 0.5) for *_, s in FOUR]
    expected = [
        sum(w for w, (_, c, _) in zip(weights[:n], FOUR[:n], strict=True) if c)
        / sum(weights[:n])
        / 2
        for n in range(1, 5)
    ]
    assert accuracies(rows, "soft_best") == pytest.approx(expected)
    assert [row["tokens"] for row in rows if row["rule"] == ANY] == [2.5, 5, 7.5, 10]
    assert rows[0]["accuracy_95"] == list(wilson(1, 2))


def test_random_subsets_come_near_the_mean_over_all_of_them() -> None:
    problems = two_problems()
    rows = score(problems, [RULES["majority"]], draws=3000)
    (first, _) = problems
    for n, found in enumerate(accuracies(rows, "majority"), 1):
        right = []
        for chosen in combinations(range(4), n):
            chances = RULES["majority"].chances([first.samples[i] for i in chosen])
            right.append(sum(p for p, i in zip(chances, chosen, strict=True) if first.correct[i]))
        assert found == pytest.approx(sum(right) / len(right) / 2, abs=0.02)


def test_random_subsets_are_fixed_by_the_problem_alone() -> None:
    first, _ = two_problems()
    drawn = list(subsets(first, 2, 50))
    assert drawn == list(subsets(first, 2, 50))
    assert all(subset == sorted(set(subset)) and len(subset) == 2 for subset in drawn)
    assert list(subsets(first, 4, 50)) == [[0, 1, 2, 3]] == list(subsets(first, 9, 0))


def test_what_is_shown_names_the_problems_that_have_fewer(tmp_path: Path) -> None:
    found = [
        record("a", *(candidate(i, "7", True) for i in range(10))),
        record("b", candidate(0, "7", True)),
        record("c", error="x"),
    ]
    text = report(parsed([str(written(tmp_path / "run", *found))]))
    said = " ".join(text.split())
    assert "3 problems, up to 10 candidates each; accuracy in percent, the first n by index" in said
    assert "problems without a candidate, which count as wrong: 1" in said
    assert "problems with fewer than 10 candidates" in said
    head = "rule n=1 n=2 n=4 n=8 n=10 95% interval, n=10"
    assert text.splitlines()[0].split() == head.split()
    (majority,) = [line.split() for line in text.splitlines() if line.startswith("majority")]
    assert majority == ["majority", *["66.7"] * 5, "20.8", "to", "93.9"]
    assert (
        "weighted, best, soft_best, borda_score: no candidate has a score; run a search that asks "
        "a verifier" in said
    )
    assert "log-probabilities were kept" in said and "run with search.statistics=true" in said


def test_markdown_and_json_hold_the_same_figures(tmp_path: Path) -> None:
    found = record("a", *(candidate(i, "7", True, score=0.5) for i in range(3)))
    words = [str(written(tmp_path / "run", found)), "--format"]
    rows = json.loads(report(parsed([*words, "json"])))["rows"]
    rules = ("majority", "weighted", "best", "soft_best", "borda_score", ANY)
    assert [(row["rule"], row["n"], row["accuracy"]) for row in rows] == [
        (rule, n, pytest.approx(1.0)) for n in (1, 2, 3) for rule in rules
    ]
    lines = [re.sub(" +", " ", line) for line in report(parsed([*words, "markdown"])).splitlines()]
    assert "| rule | n=1 | n=2 | n=3 | 95% interval, n=3 |" in lines
    assert "| best | 100.0 | 100.0 | 100.0 | 20.7 to 100.0 |" in lines


@pytest.mark.parametrize(
    ("found", "words", "message"),
    [
        (None, [], "is no folder; give the folder of a run, as outputs/NAME"),
        ([], [], r"no record in .* has a candidate"),
        ([record("a", error="x")], [], "no record in"),
        ([record("a", candidate(0, "7"))], ["--draws", "-1"], "--draws=-1 must be 0"),
        (
            [record("a", candidate(0, "7", score=1.0))],
            ["--temperature", "0"],
            "temperature=0.0 must be more than 0",
        ),
    ],
)
def test_what_cannot_be_scored_is_named(
    found: list[Any] | None,
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run" if found is None else written(tmp_path / "run", *found)
    with pytest.raises(InvalidInput, match=message):
        report(parsed([str(folder), *words]))
    monkeypatch.setattr(sys, "argv", ["select", str(folder), *words])
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        experiments.eval.select.main()


def test_a_folder_without_records_and_a_damaged_line_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds no records\.jsonl"):
        load(tmp_path)
    folder = written(tmp_path / "run", record("a", candidate(0, "7")))
    whole = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text("{torn\n" + whole)
    with pytest.raises(InvalidInput, match="line 1 is damaged"):
        load(folder)
    # a run that was stopped while it wrote
    (folder / "records.jsonl").write_text(whole + '{"id": "to')
    assert [problem.id for problem in load(folder)] == ["a"]


# ---------------------------------------------------------------- records of real runs


def test_own_figures_are_means_over_generated_tokens() -> None:
    engine = make_engine(context=160)
    root = engine.root([1, 2, 3])
    engine.generate([root], 4, statistics=True)
    own = [*root.logprobs], [*root.self_certainties], [*root.top_k_logprobs]
    engine.extend([root], [[5, 6]]).result()
    found = own_figures(BranchRecord.of(root))
    assert found["logprob"] == pytest.approx(sum(own[0]) / 4)
    assert found["self_certainty"] == pytest.approx(sum(own[1]) / 4) and found["self_certainty"] > 0
    assert found["confidences"] == [round(-value, 3) for value in own[2]]
    (plain,) = engine.fork(engine.root([1, 2, 3]), 1)
    assert {*own_figures(BranchRecord.of(plain)).values()} == {None}
    engine.generate([plain], 4)
    found = own_figures(BranchRecord.of(plain))
    assert found["logprob"] < 0 and found["self_certainty"] is None and found["confidences"] is None
    plain.self_certainties[:] = [math.inf] * 4  # where a token is impossible
    assert own_figures(BranchRecord.of(plain))["self_certainty"] is None


def test_every_rule_is_scored_from_the_folder_of_a_run(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["search=best_of_n", "search.n=5", "search.statistics=true", "verifier=confidence"]
    run(composed(place, *more))
    shown = {}
    for form in ("text", "json"):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["select", str(place / "outputs/r"), "--format", form])
        experiments.eval.select.main()
        shown[form] = capsys.readouterr().out
    assert all(f"\n{rule.name} " in shown["text"] for rule in all_rules())
    assert "not scored" not in shown["text"]
    rows = json.loads(shown["json"])["rows"]
    assert accuracies(rows, "best")[-1] == summarise(records(place))["accuracy"]
    assert {row["n"] for row in rows} == {1, 2, 3, 4, 5}
