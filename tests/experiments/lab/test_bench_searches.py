"""Searches at equal budgets: what is measured, what is measured again, which differences count, and
what is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.lab.bench import aggregation, best_searches, budgets, default_task, searches
from experiments.lab.report import searches as shown
from experiments.runs.build import make_search
from experiments.runs.data import load_task
from experiments.runs.schema import SEARCHES
from experiments.runs.stats import mcnemar
from search import MCTS, REBASE, BeamSearch, BestOfN, ComputeOptimal
from tests.helpers.benches import save_tiny_model, write_rows
from tests.helpers.configurations import configuration
from ttc.errors import InvalidInput
from ttc.results import Problem

# ---------------------------------------------------------------- settings


@pytest.mark.slow
def test_every_search_has_settings_that_can_be_made_at_every_budget() -> None:
    assert {name.partition("+")[0] for name in budgets.SEARCHES} <= set(SEARCHES)
    for tokens in (budgets.LEAST, 48, 432):
        setting = budgets.default_task(4, [tokens])
        assert set(setting.searches) == set(budgets.SEARCHES)
        for name in set(setting.searches) - {"compute_optimal"}:
            assert type(setting.search(name, tokens, "m")) is SEARCHES[name.partition("+")[0]]


@pytest.mark.slow
def test_programs_are_chosen_by_each_way_to_run_them() -> None:
    setting = budgets.programs([640])
    rated = {
        name: setting.config(name, 640, "m").verifier._target_.rpartition(".")[2]
        for name in setting.searches
        if "+" in name
    }
    assert rated == {
        "best_of_n+execution": "ExecutionVerifier",
        "best_of_n+codet": "CodeT",
        "best_of_n+mbr_exec": "MBRExec",
        "best_of_n+s_star": "SStar",
    }
    assert setting.search("best_of_n+execution", 640, "m") == BestOfN(n=18, max_tokens=160)
    assert setting.search("best_of_n+codet", 640, "m") == BestOfN(n=3, max_tokens=160)
    assert len(load_task(setting.config("greedy", 640, "m").dataset).problems) == 10


def test_settings_follow_from_how_many_answers_a_budget_pays_for() -> None:
    setting = budgets.default_task(4, [48, 432])
    few, many = (setting.search("best_of_n", tokens, "m") for tokens in (48, 432))
    assert few == BestOfN(n=4, max_tokens=48) and many == BestOfN(n=42, max_tokens=64)
    few, many = (setting.search("beam_search", tokens, "m") for tokens in (48, 432))
    assert isinstance(few, BeamSearch) and (few.beam_size, few.beam_width) == (1, 2)
    assert isinstance(many, BeamSearch) and (many.beam_size, many.beam_width) == (5, 4)


@pytest.mark.slow
def test_compute_optimal_search_is_fitted_on_the_other_half_of_the_problems() -> None:
    setting = budgets.default_task(40, [432])
    # of the even problems beams solve the hard ones, of the odd ones mcts
    even_hard = "10" * 10 + "00" * 10
    odd_hard = "01" * 10 + "00" * 10
    rows = [
        row(name, "0" * 20 + "1" * 20, 432) for name in ("best_of_n", "self_consistency", "rebase")
    ]
    rows += [row("beam_search", even_hard, 432), row("mcts", odd_hard, 432)]
    rows[0]["first_scores"] = [0.1] * 20 + [0.9] * 20
    problems = [Problem(str(i)) for i in range(40)]
    (first, even), (second, odd) = setting.parts("compute_optimal", 432, "m", problems, rows)
    assert [p.question for p in even] == list(map(str, range(0, 40, 2))) and len(odd) == 20
    assert isinstance(first, ComputeOptimal) and isinstance(second, ComputeOptimal)
    assert first.n == 21 // 4 and first.max_tokens == 64
    # five bins, of which two hold a problem
    assert first.edges == second.edges == (0.1, 0.1, 0.9, 0.9)
    assert type(first.strategies[2]) is MCTS and type(second.strategies[2]) is BeamSearch
    easy = first.strategies[4]  # the others solve as many there, and it is the first
    assert isinstance(easy, BestOfN) and isinstance(second.strategies[4], BestOfN)
    assert easy.n == 2 * ((432 - 5 * 20) // 20)  # what the first samples leave
    with pytest.raises(
        InvalidInput, match="compute_optimal is fitted on mcts at 432 tokens; measure them too"
    ):
        setting.parts("compute_optimal", 432, "m", problems, rows[:-1])


# ---------------------------------------------------------------- measuring


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl")


@pytest.mark.slow
def test_rows_are_written_as_they_come_and_only_missing_ones_are_measured(
    model: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, measured = tmp_path / "searches.json", []
    measure = searches.measure

    def counted(config: Any, parts: Any, task: Any, allowance: Any) -> Any:
        measured.append((config.search._target_, len(task.problems), allowance.tokens))
        return measure(config, parts, task, allowance)

    monkeypatch.setattr(searches, "measure", counted)
    searches.run(
        problems=3, budgets=[20, 30], searches=["greedy", "best_of_n"], model=model, out=out
    )
    record = json.loads(out.read_text())
    assert [(row["search"], row["budget"]) for row in record["rows"]] == [
        ("best_of_n", 20), ("greedy", 20), ("best_of_n", 30), ("greedy", 30)
    ]  # fmt: skip
    for row in record["rows"]:
        assert 0 < row["generated_tokens"] <= row["budget"] and row["verifier_tokens"] == 0
        assert (
            len(row["outcomes"]) == row["problems"] == 3
            and row["accuracy"] == row["outcomes"].count("1") / 3
        )
    # nothing ends, so that samples use all of it
    assert record["rows"][0]["generated_tokens"] == 20
    assert len(record["rows"][0]["first_scores"]) == 3 and "first_scores" not in record["rows"][1]
    assert [(c["search"], c["budget"], c["baseline"]) for c in record["comparisons"]] == [
        ("greedy", 20, "best_of_n"), ("greedy", 30, "best_of_n")
    ]  # fmt: skip
    measured.clear()
    searches.run(
        problems=3,
        budgets=[20, 30],
        searches=["greedy", "best_of_n", "dvts"],
        model=model,
        out=out,
        data=data,
        data_problems=2,
        data_budgets=[20],
    )
    assert measured == [
        ("search.BestOfN", 2, 20), ("search.Greedy", 2, 20), ("search.DVTS", 2, 20),
        ("search.DVTS", 3, 20), ("search.DVTS", 3, 30),
    ]  # fmt: skip
    measured.clear()
    searches.run(problems=2, budgets=[20], searches=["greedy"], model=model, out=out)
    assert measured == [("search.Greedy", 2, 20)]
    assert len(json.loads(out.read_text())["rows"]) == 9


@pytest.mark.slow
def test_rows_of_another_record_are_taken_in(model: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    searches.run(
        problems=3, budgets=[20], searches=["best_of_n"], model=model, out=one, word_budgets=[20]
    )
    searches.run(problems=3, budgets=[20], searches=["greedy"], model=model, out=other)
    searches.run(problems=3, budgets=[20], searches=["greedy"], model=model, out=one, merge=other)
    record = json.loads(one.read_text())
    assert [(row["task"], row["search"]) for row in record["rows"]] == [
        ("default task", "best_of_n"), ("word problems", "best_of_n"), ("default task", "greedy")
    ]  # fmt: skip
    assert record["rows"][2] == json.loads(other.read_text())["rows"][0]
    assert [(c["search"], c["baseline"]) for c in record["comparisons"]] == [
        ("greedy", "best_of_n")
    ]


def test_word_problems_are_different_and_have_right_answers(tmp_path: Path) -> None:
    file = tmp_path / "words.jsonl"
    setting = budgets.word_problems(file, 200, [240])
    config = setting.config("greedy", 240, "m").dataset
    problems = load_task(config).problems
    assert len({problem.question for problem in problems}) == 200
    examples = [(example["question"], example["answer"]) for example in config.examples]
    known = [(problem.question, f"The answer is {problem.answer}.") for problem in problems]
    for question, answer in [*examples, *known]:
        containers, each, more = map(int, re.findall(r"[0-9]+", question))
        assert answer.endswith(f"The answer is {containers * each + more}.")
    for _, answer in examples:
        assert all(eval(sum_) == int(value) for sum_, value in equations(answer))


def equations(text: str) -> list[tuple[str, str]]:
    return re.findall(r"([0-9]+ [*+] [0-9]+) = ([0-9]+)", text)


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        (searches.run, {"searches": ["best"]}, "the search 'best' is unknown; use some of best_of"),
        (searches.run, {"budgets": [9]}, "a budget of 9 tokens has no room .* give 17 or more"),
        (best_searches.run, {"searches": ["beam"]}, "--searches 'beam' is unknown; use some of gr"),
        (aggregation.run, {"tasks": ["sum"]}, "--tasks 'sum' is unknown; use some of sums,"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    run: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if run is searches.run:
        options = {"problems": 3, "budgets": [20], "searches": ["greedy"], "model": "m"} | options
    with pytest.raises(InvalidInput, match=message):
        run(**options, out=tmp_path / "x.json")


# ---------------------------------------------------------------- comparisons, and what is shown


def row(search: str, outcomes: str, budget: int = 48, task: str = "default task") -> dict[str, Any]:
    place = {
        "task": task,
        "budget": budget,
        "search": search,
        "problems": len(outcomes),
        "outcomes": outcomes,
    }
    share = outcomes.count("1") / len(outcomes)
    return place | {
        "accuracy": share,
        "accuracy_95": [max(0.0, share - 0.1), min(1.0, share + 0.1)],
        "generated_tokens": budget - 1.0,
        "verifier_tokens": 0.0,
        "prompt_tokens": 100.0,
        "seconds": 3.0,
    }


ROWS = [
    row("best_of_n", "1" * 10 + "0" * 10),
    row("greedy", "0" * 10 + "0" * 10),
    row("beam_search", "1" * 9 + "0" + "1" * 2 + "0" * 8),
    row("greedy", "0101", 144),
]


def test_searches_are_compared_on_the_same_problems_at_the_same_budget() -> None:
    found = searches.comparisons(ROWS)
    assert [(c["search"], c["gained"], c["lost"], c["difference"]) for c in found] == [
        ("greedy", 0, 10, -0.5), ("beam_search", 2, 1, 0.05)
    ]  # fmt: skip
    ps = [mcnemar(0, 10), mcnemar(2, 1)]
    assert [c["p"] for c in found] == ps
    assert [c["p_holm"] for c in found] == pytest.approx([2 * ps[0], ps[1]])


@pytest.mark.slow
def test_each_search_is_drawn_in_one_family(tmp_path: Path) -> None:
    members = [name for family in shown.FAMILIES.values() for name in family]
    assert len(members) == len(set(members)) and set(members) >= set(budgets.SEARCHES)
    assert not shown.draw(tmp_path / "none.json", tmp_path / "plot.png")
    pytest.importorskip("matplotlib")
    (tmp_path / "searches.json").write_text(json.dumps({"rows": ROWS}))
    assert shown.draw(tmp_path / "searches.json", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_the_rows_of_the_default_task_name_what_their_commands_run_and_the_demo_runs_one() -> None:
    commands = {name: words.split() for name, (_, words) in default_task.SEARCHES.items()}
    made = {name: make_search(configuration("run", *words))[0] for name, words in commands.items()}
    beams, rebase = made["beam search, 4 x 4"], made["REBASE, n=16"]
    assert isinstance(beams, BeamSearch) and (beams.beam_size, beams.beam_width) == (4, 4)
    assert isinstance(rebase, REBASE) and rebase.n == 16
    assert (made["best-of-16"].n, made["self-consistency, n=16"].n) == (16, 16)
    assert made["greedy"].max_tokens == 64
    demo = re.search("^SEARCH := (.*)$", Path("Makefile").read_text(), re.MULTILINE)
    assert demo is not None and [f"search={demo[1]}"] in commands.values()
