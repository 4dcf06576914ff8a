"""Data sets of programs in the forms in which they are published, and their grading."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from experiments.programs.data import CodeGrader
from experiments.runs.data import LoadedTask, load_task
from tests.experiments.test_data import jsonl
from tests.experiments.test_defaults_by_kind import check_defaults
from tests.helpers.configurations import configuration
from ttc import InvalidInput, Problem
from ttc.execution.code_tests import CallTest, InputTest
from ttc.execution.sandbox import protections
from verifiers import ExecutionVerifier

pytestmark = pytest.mark.skipif(not protections(), reason="programs cannot be confined here")

PROMPT = (
    "from typing import List\n\ndef one(): return 1\n\n"
    'def count(xs: List[int]) -> int:\n    """How many.\n    >>> count([5, 6])\n    2\n    """\n'
)
HUB = {
    "task_id": "HumanEval/0",
    "prompt": PROMPT,
    "entry_point": "count",
    "canonical_solution": "    return len(xs)\n",
    "test": "import numpy as np\n\ndef check(candidate):\n    assert one() == 1\n"
    "    for xs in ([], [1, 2]):\n        assert np.allclose(candidate(xs), len(xs))\n",
}
RELEASE = {
    **{name: HUB[name] for name in ("task_id", "prompt", "entry_point", "canonical_solution")},
    "base_input": [[[1, 2]]],
    "plus_input": [[[]]],
    "atol": 0,
}
MBPP: dict[str, Any] = {
    "task_id": 7,
    "prompt": "Write a function to add.",
    "code": "def add(a, b):\n    return a + b",
    "test_imports": ["import math"],
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    "test": "inputs = [[1, 2], [5, 5]]\nresults = [3, 10]\n"
    "for inp, exp in zip(inputs, results):\n    assert add(*inp) == exp\n",
}


def packed(cases: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


STDIN = [{"input": "2 3\n", "output": "5\n", "testtype": "stdin"}]
LIVE = {
    "question_id": "abc1",
    "question_content": "Add two numbers.",
    "starter_code": "",
    "metadata": "{}",
    "public_test_cases": json.dumps(STDIN),
    "private_test_cases": packed([{"input": "1 1\n", "output": "2\n", "testtype": "stdin"}]),
}
METHOD = {
    "question_id": "3",
    "question_content": "Add them.",
    "starter_code": "class Solution:\n    def add(self, xs: List[int]) -> int:\n        ",
    "metadata": json.dumps({"func_name": "add"}),
    "public_test_cases": json.dumps([{"input": "[1, 2]", "output": "3", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "[]", "output": "0", "testtype": "functional"}]),
}


def load(choice: str, path: Path | str) -> LoadedTask:
    return load_task(configuration("run", f"dataset={choice}", f"dataset.path={path}").dataset)


def right(task: LoadedTask, program: str) -> bool:
    return task.is_correct(task.problems[0], program)


@pytest.mark.few(1)
@pytest.mark.parametrize("row", [HUB, RELEASE], ids=["hub", "release"])
def test_humaneval_plus(row: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "HumanEvalPlus.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(row).encode() + b"\n"))
    task = load("humaneval_plus", file)
    (problem,) = task.problems
    assert problem.id == "HumanEval/0" and "def count" in problem.question
    assert right(task, "def count(xs: List[int]) -> int:\n    return len(xs)")
    assert right(task, str(problem.answer))
    assert not right(task, "def count(xs):\n    return 2") and not right(task, "")


def test_mbpp_plus(tmp_path: Path) -> None:
    task = load("mbpp_plus", jsonl(tmp_path / "m.jsonl", [MBPP]))
    (problem,) = task.problems
    assert problem.id == "Mbpp/7" and "assert add(1, 2) == 3" in problem.question
    assert problem.metadata["shown_tests"] == [f"import math\n{t}" for t in MBPP["test_list"]]
    assert right(task, "def add(x, y): return y + x")
    assert not right(task, "def add(x, y): return 3 if x else 0")  # the shown tests alone


@pytest.mark.slow
def test_livecodebench(tmp_path: Path) -> None:
    task = load("livecodebench", jsonl(tmp_path / "l.jsonl", [LIVE, METHOD]))
    reading, method = task.problems
    assert reading.metadata["shown_tests"] == [InputTest("2 3\n", "5\n")]
    assert method.metadata["shown_tests"] == [
        CallTest("Solution.add", [[1, 2]], 3, tolerance=1e-6, lists=True)
    ]
    assert task.is_correct(reading, "print(sum(map(int, input().split())))")
    assert not task.is_correct(reading, "print(5)")
    assert task.is_correct(
        method, "class Solution:\n  def add(self, xs: List[int]): return sum(xs)"
    )
    assert not task.is_correct(method, "class Solution:\n  def add(self, xs): return 3")


@pytest.mark.slow
def test_a_task_whose_function_has_a_name_of_pythons(tmp_path: Path) -> None:
    code, test = MBPP["code"].replace("add", "sum"), MBPP["test"].replace("add", "sum")
    shown = [test.replace("add", "sum") for test in MBPP["test_list"]]
    row = MBPP | {"code": code, "test": test, "test_list": shown}
    task = load("mbpp_plus", jsonl(tmp_path / "m.jsonl", [row]))
    assert right(task, code) and not right(task, "def sum(a, b): return a")
    own = {"question": "q", "tests": [test]}
    rows = [own | {"answer": code}, own]
    known, unknown = load("code", jsonl(tmp_path / "c.jsonl", rows)).problems
    grader = CodeGrader()
    assert grader(known, code) and not grader(unknown, code)


def test_an_empty_error_is_one() -> None:
    """The only test of its problem, so that no later one fails because of it."""
    program = (
        "import os\ndef f(x):\n"
        "  for i in range(3, 64):\n"
        '    try: os.write(i, b\'{"error": ""}\\n\')\n'
        "    except OSError: pass\n"
        "  return 1"
    )
    assert not CodeGrader()(Problem("q", metadata={"tests": ["assert f(2) == 4"]}), program)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return exec, ("raise SystemExit",)

    evil = base64.b64encode(zlib.compress(pickle.dumps(Runs()))).decode()
    with pytest.raises(InvalidInput, match=r"the tests name builtins\.exec, and texts alone"):
        load("livecodebench", jsonl(tmp_path / "l.jsonl", [LIVE | {"private_test_cases": evil}]))


@pytest.mark.few
@pytest.mark.parametrize(
    ("choice", "row", "says"),
    [
        ("code", {"question": "q"}, "the row has no field 'tests'"),
        ("code", {"question": "q", "tests": []}, "the field 'tests' is \\[\\]; give a list"),
        ("code", {"question": "q", "tests": [3]}, "3 is no test; give a program as"),
        ("mbpp_plus", {k: v for k, v in MBPP.items() if k != "test"}, "Its row|its row needs a"),
        ("mbpp_plus", {"prompt": "p"}, "the row has no field 'test_list'"),
        ("livecodebench", LIVE | {"public_test_cases": "!"}, "cannot be unpacked"),
        ("livecodebench", METHOD | {"metadata": "{}"}, "the row's metadata do not name"),
        ("humaneval_plus", RELEASE | {"canonical_solution": "    return x\n"}, "solution of Hum"),
    ],
)
def test_rows_that_cannot_be_used_say_why(
    choice: str, row: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=says):
        load(choice, jsonl(tmp_path / "rows.jsonl", [row]))


def test_answers_of_kind_code_need_tests(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"question": "q", "answer": "def f(): pass"}])
    config = configuration(
        "run", "dataset=file", f"dataset.path={path}", "dataset.answer_kind=code"
    )
    with pytest.raises(InvalidInput, match=r"file-0 has no tests.*dataset\.reader=code"):
        load_task(config.dataset)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(InvalidInput, match=r"rows\.jsonl\.gz cannot be read"):
        load("humaneval_plus", file)


def test_words_and_verifier_of_a_run_are_those_of_programs() -> None:
    check_defaults("code", ExecutionVerifier)
