"""Tests of programs: how they are read, what passes them, and programs that try to cheat."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples, some_quick
from ttc import InvalidInput
from ttc.execution.code_tests import (
    CallTest,
    InputTest,
    ProgramTest,
    as_test,
    examples_in,
    failures,
    same_output,
    same_value,
    shown_tests,
)
from ttc.execution.programs import Limits
from ttc.execution.sandbox import protections
from ttc.execution.values import decoded, encoded

runs = pytest.mark.skipif(not protections(), reason="programs cannot be confined here")
SHORT = Limits(time_s=0.5)
ADD = "def add(a, b):\n    return a + b\n"


@runs
def test_a_right_program_passes_and_a_wrong_one_is_told_why() -> None:
    tests = [
        as_test("assert add(2, 3) == 5"),
        as_test({"stdin": "", "stdout": ""}),
        as_test("import math\nassert math.isclose(add(0.1, 0.2), 0.3)"),
        as_test({"call": "add", "arguments": [0.1, 0.2], "expected": 0.3, "tolerance": 1e-6}),
    ]
    assert [type(test) for test in tests] == [CallTest, InputTest, ProgramTest, CallTest]
    assert failures(ADD, tests) == [None] * 4
    wrong = failures(ADD.replace("+", "-"), tests)
    assert wrong[0] == "it returned -1, not 5" and wrong[1] is None
    assert "AssertionError" in str(wrong[2]) and "not 0.3" in str(wrong[3])
    assert failures("def add(a, b) return", tests)[0] is not None
    stopped = failures(ADD.replace("+", "-"), tests, until_first=True)
    assert [str(failure).startswith("not run") for failure in stopped] == [False, True, True, True]


@runs
@pytest.mark.slow
def test_each_test_stands_alone() -> None:
    program = (
        "import os\ndef f(x):\n  if x == 1: os._exit(0)\n"
        "  if x == 2:\n    while 1: pass\n  return x"
    )
    tests = [as_test(f"assert f({x}) == {x}") for x in range(4)]
    programs = [ProgramTest(f"y = f({x})\nassert y == {x}") for x in range(4)]
    for verdicts in (failures(program, tests, SHORT), failures(program, programs, SHORT)):
        assert [verdict is None for verdict in verdicts] == [True, False, False, True]


CHEATS = {
    "leaves": "import os\nos._exit(0)",
    "prints the mark": "print('passed'); print('{\"test\": 0, \"error\": null}')\ndef f(x): "
    "return 1",
    "writes to all pipes": (
        "import os\n"
        "for i in range(3, 64):\n"
        '  try: os.write(i, b\'{"test": 0, "error": null}\\n\')\n'
        "  except OSError: pass\n"
        "def f(x): return 1"
    ),
    "equals all": (
        "class All(int):\n  def __eq__(self, other): return True\n  __hash__ = int.__hash__\n"
        "def f(x): return All(1)"
    ),
    "replaces the check": (
        "import builtins, sys\nbuiltins.AssertionError = type('A', (Exception,), {})\n"
        "builtins.all = builtins.any = lambda *a: True\ndef f(x): return 1"
    ),
    "traces": (
        "import sys\n"
        "def trace(frame, event, arg):\n"
        "  frame.f_globals['failed'] = False\n  return trace\n"
        "sys.settrace(trace)\ndef f(x): return 1"
    ),
    "looks at its callers": (
        "import sys\ndef f(x):\n  frame = sys._getframe()\n  while frame.f_back: frame = "
        "frame.f_back\n"
        "  return frame.f_locals.get('expected', 1)"
    ),
    "collects objects": (
        "import gc\ndef f(x):\n"
        "  return next((o['expected'] for o in gc.get_objects() if isinstance(o, dict) "
        "and 'expected' in o), 1)"
    ),
}


@runs
@pytest.mark.parametrize("name", some_quick(CHEATS, ["equals all", "writes to all pipes"]))
def test_who_cheats_does_not_pass(name: str) -> None:
    """f(4) is not 1, whatever the program does to its own process."""
    tests = [as_test("assert f(4) == 16"), ProgramTest("y = f(4)\nassert y == 16")]
    assert None not in failures(CHEATS[name], tests, SHORT)


@runs
def test_what_a_program_raises_reaches_a_test() -> None:
    program = "def f(x):\n  raise ValueError('no')"
    test = (
        "try:\n  f(1)\nexcept ValueError as error:\n  assert 'no' in str(error)\nelse:\n  assert 0"
    )
    assert failures(program, [ProgramTest(test)]) == [None]


@runs
def test_methods_of_a_class() -> None:
    program = "class Solution:\n  def twice(self, xs): return tuple(2 * x for x in xs)"
    test = CallTest("Solution.twice", [[1, 2]], [2, 4], lists=True)
    assert failures(program, [test]) == [None]
    strict = CallTest("Solution.twice", [[1, 2]], [2, 4])
    assert "not [2, 4]" in str(failures(program, [strict])[0])


@runs
def test_what_cannot_be_compared_fails() -> None:
    assert "type function" in str(failures("def f(): return f", [CallTest("f", [], 1)])[0])
    deep = "def f():\n  x = []\n  for _ in range(10**5): x = [x]\n  return x"
    assert failures(deep, [CallTest("f", [], 1)], SHORT)[0] is not None
    huge = "def f(): return 'a' * 10**7"
    assert "more than 1048576 bytes" in str(failures(huge, [CallTest("f", [], 1)])[0])


QUESTION = '''Write add.

def add(a, b):
    """Add two things.
    >>> add(2, 3)
    5
    add(1, 2) ➞ 3
    add([1], [2]) == [1, 2]
    add(x, y) == x + y
    """

assert add("a", "b") == "ab"
assert abs(add(1.0, 2) - 3) < 1e-3
'''


def test_tests_are_read_from_the_question() -> None:
    found = [(t.arguments, t.expected) for t in examples_in(QUESTION) if isinstance(t, CallTest)]
    assert found == [((2, 3), 5), ((1, 2), 3), (([1], [2]), [1, 2]), (("a", "b"), "ab")]
    assert shown_tests(QUESTION, {}) == examples_in(QUESTION)
    assert shown_tests(QUESTION, {"shown_tests": ["assert add(0, 0) == 0"]}) == [
        CallTest("add", (0, 0), 0)
    ]
    assert examples_in("What is 2 + 3?") == []


@pytest.mark.parametrize("value", [None, 3, "", "  ", [], {}, {"stdin": "1"}, {"call": "f"}])
def test_what_is_no_test_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="is no test; give a program as"):
        as_test(value)


@pytest.mark.parametrize("limits", [{"time_s": 0}, {"time_s": 1e9}, {"memory_bytes": 10}])
def test_limits_that_cannot_be_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(limits))):
        Limits(**limits)


def test_outputs_are_compared_line_by_line() -> None:
    assert same_output("1 2\n3\n", "1 2 \n3")
    assert same_output("0.50", "0.5") and not same_output("0.5", "0.51")
    assert not same_output("a\nb", "a b") and not same_output("yes", "Yes")


def test_values_are_compared_by_what_they_are() -> None:
    assert same_value([1, (2,)], [1, (2,)]) and not same_value([1], (1,))
    assert same_value({"a": 0.3}, {"a": 0.1 + 0.2}, 1e-6) and not same_value(0.3, 0.1 + 0.2)
    assert not same_value([1, 2], [1]) and not same_value(10**400, 1.5, 1e-6)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = (
    st.integers() | st.text() | st.tuples(st.integers(), st.text()) | st.frozensets(st.integers())
)
VALUES = st.recursive(
    PLAIN | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.sets(st.integers())
    ),
)


@settings(max_examples=examples(30))
@given(VALUES)
def test_values_come_through_as_they_are(value: Any) -> None:
    import json

    there = decoded(json.loads(json.dumps(encoded(value))))
    assert there == value and type(there) is type(value)
