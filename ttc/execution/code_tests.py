"""Tests of programs: what they are, how they are written, and which of them a program passes."""

from __future__ import annotations

import ast
import builtins
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import islice, pairwise
from threading import Event
from typing import Any

from ttc.errors import InvalidInput
from ttc.execution.programs import Functions, Limits, run_program, run_tests
from ttc.execution.values import encoded, short_repr


@dataclass(frozen=True)
class CallTest:
    """A call and what it returns. tolerance: how far numbers may be off. lists: whether tuples
    count as lists, as in tests that are kept as JSON."""

    function: str
    arguments: Sequence[Any]
    expected: Any
    tolerance: float = 0.0
    lists: bool = False


@dataclass(frozen=True)
class InputTest:
    """What the program reads, and what it prints. Blanks at the ends of lines do not count, and
    numbers may be written otherwise (1 and 1.0)."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class ProgramTest:
    """A program that calls the tested functions, as `assert f(2) == 4`; it passes unless it raises.
    tested: names of Python's own, as `sum`, that are the program's in it; others are Python's."""

    code: str
    tested: tuple[str, ...] = ()


Test = CallTest | InputTest | ProgramTest


def as_test(value: Any, tested: Sequence[str] = ()) -> Test:
    """A test as data sets hold it (docs/code.md). An assertion about one call of literals becomes a
    `CallTest`. tested: as in `ProgramTest`. Raises InvalidInput for what is no test."""
    if isinstance(value, CallTest | InputTest | ProgramTest):
        return value
    if isinstance(value, str) and value.strip():
        return _asserted_call(value) or ProgramTest(value, tuple(tested))
    if isinstance(value, Mapping):
        if {"stdin", "stdout"} == value.keys():
            return InputTest(str(value["stdin"]), str(value["stdout"]))
        optional = {"tolerance", "lists"}
        if {"call", "arguments", "expected"} == value.keys() - optional:
            rest = {name: value[name] for name in optional & value.keys()}
            return CallTest(value["call"], value["arguments"], value["expected"], **rest)
    raise InvalidInput(
        f"{value!r:.80} is no test; give a program as 'assert f(2) == 4', a mapping with call, "
        "arguments and expected, or one with stdin and stdout"
    )


def _asserted_call(code: str) -> CallTest | None:
    try:
        (statement,) = ast.parse(code.strip()).body
        assert isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare)
        ((operation,), (right,)) = statement.test.ops, statement.test.comparators
        call = statement.test.left
        assert isinstance(operation, ast.Eq) and isinstance(call, ast.Call) and not call.keywords
        assert isinstance(call.func, ast.Name)
        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
        expected = ast.literal_eval(right)
        encoded([*arguments, expected])
        return CallTest(call.func.id, arguments, expected)
    except (AssertionError, ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


# ---------------------------------------------------------------- running them


def failures(
    program: str,
    tests: Sequence[Test],
    limits: Limits | None = None,
    until_first: bool = False,
    stop: Event | None = None,
) -> list[str | None]:
    """For each test None where the program passes it, else why not.

    until_first: no test is run after the first failure. stop: once it is set, none at all.
    """
    verdicts = dict[int, str | None]()
    why = ""
    for place, verdict in _verdicts(program, tests, limits or Limits()):
        verdicts[place] = verdict
        if stop is not None and stop.is_set():
            why = "it was stopped"
        elif until_first and verdict is not None:
            why = verdict
        if why:
            break
    return [verdicts.get(place, f"not run: {why}") for place in range(len(tests))]


def _verdicts(
    program: str, tests: Sequence[Test], limits: Limits
) -> Iterator[tuple[int, str | None]]:
    calls = {i: test for i, test in enumerate(tests) if isinstance(test, CallTest)}
    programs = {i: test for i, test in enumerate(tests) if isinstance(test, ProgramTest)}
    if calls or programs:
        tested = {call.function for call in calls.values()}
        tested = tested.union(*(test.tested for test in programs.values()))
        with Functions(program, limits) as functions:
            for i, call in calls.items():
                yield i, _call_failure(functions, call)
            codes = [test.code for test in programs.values()]
            yield from zip(programs, run_tests(functions, codes, tested), strict=True)
    for i, test in enumerate(tests):
        if isinstance(test, InputTest):
            outcome = run_program(program, test.stdin, limits)
            failure = outcome.error
            if failure is None and not same_output(test.stdout, outcome.value):
                failure = f"it printed {outcome.value!r:.60}, not {test.stdout!r:.60}"
            yield i, failure


def _call_failure(functions: Functions, test: CallTest) -> str | None:
    outcome = functions.call(test.function, test.arguments)
    if outcome.error is not None:
        return outcome.error
    if same_value(test.expected, outcome.value, test.tolerance, test.lists):
        return None
    return f"it returned {short_repr(outcome.value, 60)}, not {short_repr(test.expected, 60)}"


def same_value(expected: Any, value: Any, tolerance: float = 0.0, lists: bool = False) -> bool:
    """Whether a call returned what was expected (see `CallTest`)."""
    if lists:
        expected, value = (list(v) if isinstance(v, tuple) else v for v in (expected, value))
    if isinstance(expected, list | tuple) and type(expected) is type(value):
        pairs = zip(expected, value, strict=False)
        return len(expected) == len(value) and all(same_value(*p, tolerance, lists) for p in pairs)
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(
            same_value(part, value[key], tolerance, lists) for key, part in expected.items()
        )
    if expected == value:
        return True
    numbers = isinstance(expected, int | float) and isinstance(value, int | float)
    if not numbers or not tolerance:
        return False
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(value, float) and math.isnan(value)
    try:
        return math.isclose(expected, value, rel_tol=1e-7, abs_tol=tolerance)
    except OverflowError:
        return False


def same_output(expected: str, printed: str) -> bool:
    left, right = (
        [line.strip() for line in text.strip().split("\n")] for text in (expected, printed)
    )
    return len(left) == len(right) and all(map(_same_line, left, right))


def _same_line(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    left, right = expected.split(), printed.split()
    try:
        return len(left) == len(right) and all(
            Decimal(a) == Decimal(b) for a, b in zip(left, right, strict=True)
        )
    except InvalidOperation:
        return False


# ---------------------------------------------------------------- tests that a question shows

MAX_EXAMPLES = 256
"""Tests that are read of one question."""
_CALLS = re.compile(r"(?:[-*][ \t]++)?`?(?=[A-Za-z_]\w*+\()")
_GIVES = re.compile(r"\)`?[ \t]*+(?:==|=>|->|➞|→|#[ \t]*+(?:returns|=>)|should return|returns)")


@lru_cache(maxsize=64)
def examples_in(question: str) -> Sequence[Test]:
    """The tests that a question shows: examples of doctest, lines as `f(2) == 4` or `f(2) -> 4`,
    and assertions, `MAX_EXAMPLES` at most. Only those that are one call of literals."""
    lines = [line.strip(" \t") for line in question.split("\n")]
    doctests = [
        (line[3:], after)
        for line, after in pairwise(lines)
        if line.startswith(">>>") and after and not after.startswith(">>>")
    ]
    pairs = [*doctests, *filter(None, map(_example, lines))]
    written = [f"assert {call.strip()} == {value.strip()}" for call, value in pairs]
    plain = (line.removeprefix("`").removesuffix("`") for line in lines)
    written += [line for line in plain if line.startswith(("assert ", "assert("))]
    calls = map(_asserted_call, dict.fromkeys(written))
    return list(islice((test for test in calls if test is not None), MAX_EXAMPLES))


def _example(line: str) -> tuple[str, str] | None:
    """The call and the value of a line as `f(2) -> 4`: the last sign between them counts."""
    begins = _CALLS.match(line)
    gives = list(_GIVES.finditer(line, begins.end())) if begins else []
    for sign in reversed(gives):
        value = line[sign.end() :].strip(" \t").rstrip(" \t`.")
        if value and begins is not None:
            return line[begins.end() : sign.start() + 1], value
    return None


def whole_program(answer: str, about: Mapping[str, Any]) -> str:
    return f"{preamble}\n{answer}" if (preamble := about.get("preamble")) else answer


def shown_tests(question: str, about: Mapping[str, Any]) -> Sequence[Test]:
    """The tests that a solver may see: its metadata's `shown_tests`, else those in the question."""
    tests = about.get("shown_tests")
    return examples_in(question) if tests is None else written_tests(tests, about)


def written_tests(tests: Sequence[Any], about: Mapping[str, Any]) -> list[Test]:
    return [as_test(test, about.get("tested", ())) for test in tests]


def pythons_names(solution: str) -> list[str]:
    """The functions of a solution that have names of Python's own."""
    try:
        tree = ast.parse(solution)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names = [part.name for part in tree.body if isinstance(part, ast.FunctionDef)]
    return [name for name in names if hasattr(builtins, name)]
