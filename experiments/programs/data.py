"""Data sets of programs: how their rows are read, and how answers are graded by running them."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.cli.settings import DatasetConfig
from experiments.runs.rows import Row
from ttc.errors import InvalidInput, refusing
from ttc.execution.code_tests import (
    CallTest,
    InputTest,
    Test,
    as_test,
    failures,
    pythons_names,
    whole_program,
    written_tests,
)
from ttc.execution.programs import Functions, Limits, check_sandbox
from ttc.results import Problem

IMPORTS = """import bisect, collections, functools, heapq, itertools, math, random, re, string, sys
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
"""
"""What solutions of LiveCodeBench may use without importing it."""

NEAR = 1e-6
"""How far a number may be off where a task names no tolerance."""


def read_code(row: Row, name: str, config: DatasetConfig) -> Problem:
    """Your own tasks: fields `question` and `tests`, and if there are any `shown_tests`, an `id`, a
    `preamble` that stands before every program, and a solution as `answer`."""
    fields = config.fields
    question, id = row[fields.question or "question"], row.get("id")
    about: dict[str, Any] = {"tests": _listed(row, "tests")}
    if "shown_tests" in row:
        about["shown_tests"] = _listed(row, "shown_tests")
    if row.get("preamble"):
        about["preamble"] = str(row["preamble"])
    for test in [*about["tests"], *about.get("shown_tests", [])]:
        as_test(test)  # refuses what is no test
    answer = row.get(fields.answer or "answer")
    about["tested"] = pythons_names(str(answer))
    id = name if id in (None, "") else str(id)
    return Problem(str(question), id, None if answer is None else str(answer), about)


def _listed(row: Row, field: str) -> list[Any]:
    tests = row[field]
    if not isinstance(tests, list) or not tests:
        raise InvalidInput(f"the field {field!r} is {tests!r:.60}; give a list of tests")
    return tests


def read_evalplus(row: Row, name: str, config: DatasetConfig) -> Problem:
    """HumanEval+ and MBPP+: with their tests as a program (`test`), as on the hub, or HumanEval+
    with inputs and a solution that gives the outputs (`base_input`, `plus_input`), as EvalPlus
    publishes it."""
    prompt = str(row[config.fields.question or "prompt"])
    about: dict[str, Any] = {}
    entry, task = row.get("entry_point"), str(row.get("task_id", name))
    if entry is not None:  # HumanEval's prompt is a function's beginning
        question = f"```python\n{prompt.strip()}\n```"
        begin = prompt.find(f"def {entry}(")
        about["preamble"] = prompt[: max(0, begin)]
        solution = prompt + str(row[config.fields.answer or "canonical_solution"])
        closing = f"\n\ncheck({entry})\n"
    else:
        tests = [str(test) for test in row["test_list"]]
        imports = row.get("test_imports") or []
        about["shown_tests"] = ["\n".join([*imports, test]) for test in tests]
        lines = "\n".join(tests)
        question = (
            f"{prompt.strip()}\nYour program has to pass these tests:\n```python\n{lines}\n```"
        )
        solution, closing = str(row[config.fields.answer or "code"]), ""
    if row.get("test"):
        about["tests"] = [f"{row['test']}{closing}"]
    elif entry is not None and "base_input" in row and not task.startswith("Mbpp"):
        inputs = [*row["base_input"], *(row.get("plus_input") or [])]
        about["reference"] = {"call": entry, "inputs": inputs, "tolerance": row.get("atol") or NEAR}
    else:
        raise InvalidInput(
            f"{task} has no tests: its row needs a field test, as in the hub's "
            "evalplus/humanevalplus and evalplus/mbppplus"
        )
    about["tested"] = pythons_names(solution)
    return Problem(question, task if "/" in task else f"Mbpp/{task}", solution, about)


def read_livecodebench(row: Row, name: str, config: DatasetConfig) -> Problem:
    """Tasks with a program's input and output, or with a method of a class `Solution`."""
    starter = str(row.get("starter_code") or "")
    question = str(row[config.fields.question or "question_content"]).strip()
    if starter.strip():
        question += f"\n\nBegin with this code:\n```python\n{starter.rstrip()}\n```"
    else:
        question += "\n\nRead the input from standard input, and print the answer."
    function = json.loads(row.get("metadata") or "{}").get("func_name")
    about = {
        "preamble": IMPORTS,
        "shown_tests": _livecodebench_tests(row["public_test_cases"], function),
        "packed_tests": (row["private_test_cases"], function),
    }
    return Problem(question, str(row.get("question_id") or name), None, about)


def _livecodebench_tests(packed: str, function: str | None) -> list[Test]:
    tests: list[Test] = []
    for case in json.loads(packed) if packed.lstrip().startswith("[") else _unpacked(packed):
        if case.get("testtype") == "functional":
            if not function:
                raise InvalidInput("a test calls a function that the row's metadata do not name")
            arguments = [json.loads(line) for line in case["input"].split("\n") if line.strip()]
            name = f"Solution.{function}"
            tests.append(
                CallTest(name, arguments, json.loads(case["output"]), tolerance=NEAR, lists=True)
            )
        else:
            tests.append(InputTest(case["input"], case["output"]))
    return tests


class _Text(pickle.Unpickler):
    """Reads texts alone: a pickle may else run any code."""

    def find_class(self, module: str, name: str) -> Any:
        raise InvalidInput(f"the tests name {module}.{name}, and texts alone are read")


def _unpacked(packed: str) -> list[dict[str, Any]]:
    """LiveCodeBench's private tests: JSON, pickled, compressed, as letters."""
    with refusing(
        (ValueError, TypeError, zlib.error, binascii.Error, pickle.UnpicklingError),
        "the private tests cannot be unpacked: {error}",
    ):
        text = _Text(io.BytesIO(zlib.decompress(base64.b64decode(packed)))).load()
        cases: list[dict[str, Any]] = json.loads(text)
    return cases


# ---------------------------------------------------------------- grading


@dataclass
class CodeGrader:
    """An answer is right when it passes all tests of its problem, in the sandbox. Equal answers are
    run once."""

    limits: Limits = field(default_factory=Limits)
    _verdicts: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __call__(self, problem: Problem, answer: str | None) -> bool:
        if answer is None:
            return False
        key = problem.id, answer
        if key not in self._verdicts:
            program = whole_program(answer, problem.metadata)
            verdicts = failures(program, self.tests(problem), self.limits, until_first=True)
            self._verdicts[key] = all(verdict is None for verdict in verdicts)
        return self._verdicts[key]

    def tests(self, problem: Problem) -> list[Test]:
        """The tests that grade a problem. Raises InvalidInput where it has none that can be
        used."""
        about = problem.metadata
        if "reference" in about:
            return _of_reference(problem, about["reference"], self.limits)
        if "packed_tests" in about:
            packed, function = about["packed_tests"]
            return [*about["shown_tests"], *_livecodebench_tests(packed, function)]
        if not about.get("tests"):
            raise InvalidInput(
                f"{problem.id} has no tests, which grade answers of kind code; use "
                "dataset.reader=code with a field tests, or a reader that puts them into metadata"
            )
        return written_tests(about["tests"], about)


def grader_of(problems: Sequence[Problem]) -> CodeGrader:
    """Raises InvalidInput where no sandbox can be had, and for problems without tests."""
    check_sandbox()
    grader = CodeGrader()
    grader.tests(problems[0])
    return grader


def _of_reference(problem: Problem, reference: Mapping[str, Any], limits: Limits) -> list[Test]:
    """Tests whose outputs are those of the problem's own solution."""
    tests: list[Test] = []
    with Functions(problem.answer or "", limits) as solution:
        for arguments in reference["inputs"]:
            outcome = solution.call(reference["call"], arguments)
            if outcome.error is not None:
                raise InvalidInput(
                    f"the solution of {problem.id} fails on {arguments!r:.60}: {outcome.error}"
                )
            tolerance = reference["tolerance"]
            tests.append(CallTest(reference["call"], arguments, outcome.value, tolerance))
    return tests
