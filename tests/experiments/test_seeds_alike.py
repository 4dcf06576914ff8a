"""A search that draws nothing is solved once for all seeds of a sweep; every seed has its
records."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import experiments.runs.problem_loop
import experiments.runs.seeds_alike
from experiments.runs.problem_loop import run
from search.base import Case, SearchSteps
from search.greedy import Greedy
from tests.helpers.parts import installed
from tests.helpers.records import records
from tests.helpers.runs import ROWS, composed, save_rows
from ttc.branch import Branch
from ttc.protocols import Expand
from ttc.sampling import Sampling


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the problems that were solved by a model."""
    solved: list[str] = []
    results_of = experiments.runs.problem_loop.results_of

    def counting(engine: Any, config: Any, problems: Any, **options: Any) -> Any:
        solved.extend(problem.id for problem in problems)
        return results_of(engine, config, problems, **options)

    monkeypatch.setattr(experiments.runs.problem_loop, "results_of", counting)
    return solved


def seeds(place: Path, *settings: str, search: tuple[str, ...]) -> None:
    (place / "notes").mkdir(exist_ok=True)
    for seed in (0, 1):
        name = (f"run.seed={seed}", f"run.name=s{seed}")
        run(composed(place, *name, *settings, search=search), place / "notes")


ALIKE = [
    ("search=greedy", "search.max_tokens=3"),
    ("search=self_consistency", "search.n=2", "search.max_tokens=3", "search.temperature=0"),
    (
        "search=budget_forcing",
        "search.thinking_tokens=3",
        "search.answer_tokens=2",
        "search.temperature=0",
    ),
]


@pytest.mark.parametrize(
    "search",
    [ALIKE[0], *(pytest.param(words, marks=pytest.mark.slow) for words in ALIKE[1:])],
    ids=lambda words: words[0],
)
def test_one_seed_is_solved_and_the_others_have_its_records(
    place: Path, solved: list[str], capsys: pytest.CaptureFixture[str], search: tuple[str, ...]
) -> None:
    seeds(place, search=search)
    assert len(solved) == len(ROWS)
    assert records(place, "s0") == records(place, "s1")
    assert f"4 records copied from {place / 'outputs' / 's0'}" in capsys.readouterr().err
    (go,) = json.loads((place / "outputs" / "s1" / "provenance.json").read_text())
    assert go["copied_from"] == str(place / "outputs" / "s0")
    assert "seed: 1" in (place / "outputs" / "s1" / "config.yaml").read_text()
    assert (place / "outputs" / "s1" / "summary.json").exists()


class Drawing(Greedy):
    """A class of one's own, which has not said that it draws nothing."""

    def run(self, root: Branch, case: Case) -> SearchSteps:
        branches = yield Expand([root], 1, case.answer(3), Sampling(1.0))
        return branches


VOTES = ("search=self_consistency", "search.n=2", "search.max_tokens=3")
DIFFER = {
    "it draws": VOTES,
    "a verifier weighs votes": (
        *VOTES,
        "search.temperature=0",
        "search.weighted=true",
        "verifier=confidence",
    ),
    "a class of one's own": ("search=greedy", f"search._target_={__name__}.Drawing"),
    "another setting follows the seed": ("search=greedy", "search.final=${run.seed}"),
}
if installed("tools", "calculator"):
    DIFFER["a tool"] = ("search=greedy", "search.max_tokens=3", "tools=calculator")


@pytest.mark.slow
@pytest.mark.parametrize("search", DIFFER.values(), ids=DIFFER)
def test_what_may_differ_is_solved_for_each_seed(
    place: Path, solved: list[str], search: tuple[str, ...]
) -> None:
    seeds(place, search=search)
    assert len(solved) == 2 * len(ROWS)


@pytest.mark.slow
def test_gone_on_to_more_problems(place: Path, solved: list[str]) -> None:
    """A seed keeps its own records, and gets those that it lacks."""
    run(composed(place, "run.seed=1", "run.name=s1", "dataset.limit=1"))
    before = records(place, "s1")
    seeds(place, search=ALIKE[0])
    assert solved == ["file-0", "file-0", "file-1", "file-2", "file-3"]
    assert records(place, "s1")[:1] == before and len(records(place, "s1")) == len(ROWS)


@pytest.mark.slow
def test_failures_are_tried_again(place: Path, solved: list[str]) -> None:
    rows = [*ROWS[:2], {"question": "1 " * 3000, "answer": "1"}]
    save_rows(place / "rows.jsonl", rows)
    seeds(place, search=ALIKE[0])
    assert solved == ["file-0", "file-1", "file-2", "file-2"]


def test_a_run_of_no_sweep_solves_itself(place: Path, solved: list[str]) -> None:
    for seed in (0, 1):
        run(composed(place, f"run.seed={seed}", f"run.name=s{seed}", search=ALIKE[0]))
    assert len(solved) == 2 * len(ROWS)


def test_two_at_once_solve_once(
    place: Path, solved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first, as in a launcher's processes, and copies its records."""
    waits = Event()
    monkeypatch.setattr(experiments.runs.seeds_alike, "say", lambda _: waits.set())
    results_of = experiments.runs.problem_loop.results_of

    def once_the_other_waits(*given: Any, **options: Any) -> Any:
        assert waits.wait(60)
        return results_of(*given, **options)

    monkeypatch.setattr(experiments.runs.problem_loop, "results_of", once_the_other_waits)
    (place / "notes").mkdir()
    jobs = [
        composed(place, f"run.seed={seed}", f"run.name=s{seed}", search=ALIKE[0]) for seed in (0, 1)
    ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(run, jobs, [place / "notes"] * 2))
    assert len(solved) == len(ROWS)
    assert records(place, "s0") == records(place, "s1")


@pytest.mark.slow
def test_after_a_run_that_fails_the_next_one_solves(
    place: Path, solved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    (place / "notes").mkdir()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(experiments.runs.problem_loop, "results_of", broken)
        run(composed(place, "run.seed=0", "run.name=s0", search=ALIKE[0]), place / "notes")
    seeds(place, search=ALIKE[0])
    assert len(solved) == len(ROWS)
