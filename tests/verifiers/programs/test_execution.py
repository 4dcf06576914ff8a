"""Programs rated by running them: hand-made branches, and a search."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from search import BestOfN, solve
from tests.helpers.scripted import Scripted
from ttc import InvalidInput, Problem, Usage
from ttc.branch import Branch
from ttc.execution.sandbox import protections
from ttc.passes.ratings import passes_of_rating
from verifiers import EnsembleVerifier, ExecutionVerifier

pytestmark = pytest.mark.skipif(not protections(), reason="programs cannot be confined here")

QUESTION = (
    "Write f, which doubles a number.\n>>> f(2)\n4\n>>> f(0)\n0\n>>> f(-1)\n-2\n>>> f('a')\n'aa'"
)
HALF = "def f(x): return x if x == 0 else 4"


def branch(text: str, finished: bool = True, about: dict[str, Any] | None = None) -> Branch:
    made = Branch([1], None, 0, Usage(), lambda tokens: text if tokens else "")
    made.tokens += [2]
    made.finish_reason = "eos" if finished else None
    made.about = about or {}
    return made


def rate(*branches: Branch, question: str = QUESTION, **settings: Any) -> list[float]:
    verifier = ExecutionVerifier(**settings)
    scores = verifier.rate(branches, [question] * len(branches), None)  # type: ignore[arg-type]
    return [score for (score,) in scores]


def block(program: str) -> str:
    return f"So:\n```python\n{program}\n```"


def test_a_branch_rates_the_share_of_shown_tests() -> None:
    right, half = branch(block("def f(x): return 2 * x")), branch(block(HALF))
    assert rate(right, half, branch(block("def g(x): return x"))) == [1.0, 0.5, 0.0]


def test_what_has_no_program_and_what_is_still_written() -> None:
    opened = branch("```python\ndef f(x):", finished=False)
    closed = branch(block("def f(x): return 2 * x"), finished=False)
    scores = rate(branch("I cannot."), opened, closed, branch("Well,", finished=False), neutral=0.3)
    assert scores == [0.0, 0.3, 1.0, 0.3]


def test_others_go_on_while_programs_run_and_whoever_leaves_ends_them() -> None:
    """A server makes such a rating in pieces (`passes_of_rating`). One that is closed runs no
    further test: each of these 400 would take a second."""
    slow = branch(block("import time\ndef f(x):\n    time.sleep(1)\n    return x"))
    question = "Write f.\n" + "\n".join(f">>> f({x})\n{x}" for x in range(400))
    threads = threading.active_count()
    rating = passes_of_rating(ExecutionVerifier(), [slow], [question], None)  # type: ignore[arg-type]
    began = time.monotonic()
    for _ in range(5):
        next(rating)
    rating.close()
    while threading.active_count() > threads:
        assert time.monotonic() - began < 100, "programs still run"
        time.sleep(0.05)


def test_without_tests_a_program_has_to_load() -> None:
    works, fails = branch(block("def f(x): return x")), branch(block("import nothing_of_that_name"))
    assert rate(works, fails, question="Write f.") == [1.0, 0.0]


def test_the_tests_of_the_metadata_come_first_and_those_that_grade_are_not_used() -> None:
    about = {
        "shown_tests": ["assert f(3) == 9"],
        "tests": ["assert f(3) == 10"],
        "preamble": "n = 3",
    }
    assert rate(branch(block("def f(x): return n * x"), about=about)) == [1.0]


@pytest.mark.parametrize("setting", [{"neutral": 2}, {"time_s": 0}, {"memory_mib": 1}])
def test_wrong_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(setting))[:4]):
        ExecutionVerifier(**setting)


def test_a_search_chooses_the_program_that_passes() -> None:
    texts = ["```\ndef f(x): return x\n```", "```\ndef f(x): return x * 2\n```"] * 2
    backend = Scripted(lambda branch: texts[branch.path[-1]] + "0")
    problem = Problem("Double it.", metadata={"shown_tests": ["assert f(4) == 8"]})
    verifier = EnsembleVerifier([ExecutionVerifier()])
    found = solve(
        BestOfN(n=4, max_tokens=60),
        problem=problem,
        engine=backend,
        verifier=verifier,
        answer_kind="code",
    )
    assert found.answer == "def f(x): return x * 2"
    assert [b.score for b in found.branches] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.slow
def test_the_example_file_holds_tests_that_its_solutions_pass() -> None:
    from experiments.programs.data import CodeGrader

    rows = (Path(__file__).parents[3] / "examples/functions.jsonl").read_text().splitlines()
    grader = CodeGrader()
    for row in map(json.loads, rows):
        problem = Problem(row["question"], row["id"], row["answer"], {"tests": row["tests"]})
        assert grader(problem, row["answer"]) and not grader(problem, "def nothing(): pass")
    assert len(rows) == 10
