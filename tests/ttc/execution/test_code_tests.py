"""Tests of programs: how they are read, what passes them, and programs that try to cheat."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.processes import finished
from tests.helpers.tiers import examples, some_quick
from ttc import InvalidInput
from ttc.execution.code_tests import (
    CallTest,
    InputTest,
    ProgramTest,
    as_test,
    examples_in,
    failures,
    pythons_names,
    same_output,
    same_value,
    shown_tests,
)
from ttc.execution.programs import Functions, Limits
from ttc.execution.sandbox import fixed_addresses, protections
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


WRITE = (
    "import os\n"
    "def write(line):\n"
    "  for i in range(1, 64):\n"
    "    try: os.write(i, line.encode() + b'\\n')\n"
    "    except OSError: pass\n"
)
"""What a program begins with that writes to whatever is open."""

CHEATS = {
    "leaves": "import os\nos._exit(0)",
    "prints the mark": "print('passed'); print('{\"test\": 0, \"error\": null}')\ndef f(x): "
    "return 1",
    "writes to all pipes": WRITE + 'write(\'{"test": 0, "error": null}\')\ndef f(x): return 1',
    "writes when it is called": WRITE
    + 'def f(x):\n  write(\'{"test": 0, "error": null}\')\n  return 1',
    "writes an empty error": WRITE + 'def f(x):\n  write(\'{"error": ""}\')\n  os._exit(0)',
    "closes its pipes": "import os\ndef f(x): os.closerange(0, 64)",
    "handles signals": (
        "import os, signal\n"
        "for number in (signal.SIGTERM, signal.SIGPROF):\n"
        "  signal.signal(number, lambda *_: os._exit(0))\n"
        "def f(x): return 1"
    ),
    "leaves in a thread": (
        "import os, threading\n"
        "threading.Thread(target=lambda: os._exit(0)).start()\n"
        "def f(x): return 1"
    ),
    "leaves at its end": (
        "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit"
    ),
    "replaces modules": (
        "import sys\n"
        "sys.modules['json'].dumps = lambda *_: '{\"test\": 0, \"error\": null}'\n"
        "sys.modules['__main__'].what = lambda _: None\n"
        "def f(x): return 1"
    ),
    "raises an error that cannot be written": (
        "class E(Exception):\n  def __str__(self): return ''\ndef f(x): raise E"
    ),
    "returns a value that no test can have": "def f(x): return f",
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


NAMES = ["range", "zip", "len", "abs", "isinstance", "sorted", "AssertionError", "__builtins__"]


@runs
def test_names_of_python_are_pythons_in_a_test() -> None:
    """A program that defines them, or says that it did, changes no test."""
    defined = "".join(f"def {name}(*_): return []\n" for name in NAMES)
    forged = WRITE + f"import json\nwrite(json.dumps({{'names': ['f', *{NAMES}]}}))\n"
    tests = [
        ProgramTest("for x in range(3):\n    assert f(x) == x * x"),
        ProgramTest("for x, y in zip([2], [4]):\n    assert f(x) == y"),
        ProgramTest("assert len(f(3)) == 0"),
        ProgramTest("assert abs(f(2) - 4) < 1e-6"),
        ProgramTest("assert sorted([f(2)]) == []"),
        ProgramTest("assert isinstance(f(2), str)"),
    ]
    for program in (defined, forged):
        assert None not in failures(f"{program}def f(x): return 7", tests)


@pytest.mark.slow
@runs
def test_a_function_under_test_may_have_a_name_of_pythons() -> None:
    program = "def sum(a, b): return a + b\ndef len(x): return 0"
    loop = "for x in range(3):\n    assert sum(x, x) == 2 * x\nassert len([1]) == 1"
    assert failures(program, [as_test("assert sum(1, 2) == 3"), as_test(loop)]) == [None, None]
    assert failures(program, [as_test(loop, pythons_names("def sum(a, b): pass"))]) == [None]
    assert "TypeError" in str(failures(program, [as_test(loop)])[0])
    assert pythons_names("def f(): pass") == pythons_names("def (") == []


@runs
def test_a_program_that_cannot_be_loaded_passes_nothing() -> None:
    tests = [ProgramTest("try:\n  f(1)\nexcept Exception: pass"), ProgramTest("pass")]
    assert ["SyntaxError" in str(v) for v in failures("def f(x) return", tests)] == [True] * 2


ENDS = {
    "raise StopIteration": ["assert list(map(f, [1, 2])) == []", "assert not any(map(f, [1]))"],
    "raise StopAsyncIteration": ["y = f(1)"],
    "raise SystemExit": ["try:\n  f(1)\nexcept BaseException: pass"],
    "raise GeneratorExit": ["def g():\n  yield f(1)\nlist(g())", "try: f(1)\nexcept: pass"],
    "raise KeyboardInterrupt": ["try:\n  f(1)\nexcept BaseException: pass"],
    "import os; os._exit(0)": ["try:\n  f(1)\nexcept Exception: pass"],
    "\n  while 1: pass": ["try:\n  f(1)\nexcept Exception: pass"],
    "return f": ["try:\n  f(1)\nexcept TypeError: pass"],
}


@runs
@pytest.mark.parametrize("end", some_quick(ENDS, ["raise StopIteration", "raise SystemExit"]))
def test_what_ends_a_function_ends_no_test_well(end: str) -> None:
    tests = [ProgramTest(test) for test in ENDS[end]]
    assert None not in failures(f"def f(x): {end}", tests, SHORT)


@runs
def test_errors_come_as_pythons_own() -> None:
    """Those of a program as what they inherit from, and all that need more than a text."""
    program = (
        "class Mine(ValueError): pass\n"
        "def f(x):\n"
        "  if x == 0: raise Mine('no')\n"
        "  if x == 1: b'\\xff'.decode()\n"
        "  if x == 2: raise ExceptionGroup('all', [ValueError()])\n"
        "  raise StopIteration"
    )
    expects = ["ValueError", "UnicodeError", "Exception", "RuntimeError"]
    tests = [
        f"try:\n  f({x})\nexcept {kind} as e: assert {x} or 'no' in str(e)\nelse: raise KeyError"
        for x, kind in enumerate(expects)
    ]
    assert failures(program, [ProgramTest(test) for test in tests]) == [None] * 4


COLLIDING = ",".join(str(i * (2**61 - 1)) for i in range(40_000))
REPLIES = {
    "an empty error": '{"error": ""}',
    "no error": '{"error": null}',
    "an error that is no text": '{"error": [1], "kind": {}}',
    "half a character": '{"error": "\\ud800", "kind": "StopIteration"}',
    "names that are none": '{"names": 5}',
    "names that are numbers": '{"names": [5]}',
    "another message": '{"x": 1}',
    "two messages": '{"value": 4, "error": "no"}',
    "no message": "[1]",
    "bytes": "\xff\x00",
    "a verdict": '{"test": 0, "error": null}',
    "an unknown value": '{"value": {"x": 1}}',
    "a dictionary of nothing": '{"value": {"dict": [[1]]}}',
    "a set of lists": '{"value": {"set": [[1]]}}',
    "a number too large": f'{{"value": {{"complex": [1{"0" * 400}, 0]}}}}',
    "a number too long": f'{{"value": {"1" * 5000}}}',
    "an integer too long to be written": f'{{"value": {{"int": "{"f" * 9000}"}}}}',
    "colliding numbers": f'{{"value": {{"set": [{COLLIDING}]}}}}',
    "colliding keys": '{"value": {"dict": [[' + COLLIDING.replace(",", ",0],[") + ",0]]}}",
    "a deep value": '{"value": ' + "[" * 400 + "]" * 400 + "}",
    "a bottomless value": '{"value": ' + "[" * 100_000,
}


@pytest.mark.slow
@runs
@pytest.mark.parametrize("reply", some_quick(REPLIES, ["an empty error", "colliding numbers"]))
def test_a_reply_is_what_a_stranger_says(reply: str) -> None:
    """Whatever a program writes as it loads, is called, or ends, the run goes on, and the reason is
    a text that can be kept."""
    line = REPLIES[reply]
    loads = f"{WRITE}write({line!r})\nos._exit(0)"
    called = f"{WRITE}def f(x):\n  write({line!r})\n  os._exit(0)"
    tests = [as_test("assert f(4) == 16"), ProgramTest("y = f(4)\nassert y == 16")]
    script = [InputTest("", "16")] if len(line) < 2**16 else []  # more than a pipe holds
    for program, these in ((loads, tests[:1]), (called, tests), (loads, script)):
        for verdict in failures(program, these, SHORT):
            assert verdict and verdict.encode()


@runs
def test_equal_runs_are_equal() -> None:
    """Hashes of texts, of objects and of None, and random numbers that nobody seeds."""
    program = (
        "import os, random, secrets\n"
        "class A: pass\n"
        "def f():\n"
        "  made = [A() for _ in range(20)]\n"
        "  words = 'the quick brown fox jumps over a dog'.split()\n"
        "  places = [made.index(x) for x in {*made}]\n"
        "  rest = [random.random(), random.Random().random(), os.urandom(4), secrets.token_hex()]\n"
        "  return [list({*words}), rest, list({*words, None}), places]"
    )
    runs = []
    for _ in range(4):
        with Functions(program) as functions:
            runs.append(functions.call("f", []))
            assert runs[-1].error is None and runs[-1] != functions.call("f", [])
    same = 4 if len({address() for _ in range(4)}) == 1 else 2
    assert [run.value[:same] for run in runs] == [runs[0].value[:same]] * 4


def address() -> str:
    """Where an object lies in a process, which some kernels do not let anybody fix."""
    code = "print(id(object()))"
    with fixed_addresses():
        return finished([sys.executable, "-c", code], env={"PYTHONHASHSEED": "0"}).stdout


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


@runs
def test_a_range_is_no_list_and_long_numbers_are_right() -> None:
    program = "import math\ndef f(n): return range(n)\ndef g(n): return math.factorial(n)"
    tests = ["assert f(3) == [0, 1, 2]", "assert f(3) == range(3)"]
    longs = ["import math\nassert g(3000) == math.factorial(3000)", "x = g(3000)\nassert x < 9"]
    verdicts = failures(program, list(map(as_test, [*tests, *longs, "assert g(3000) == 1"])))
    assert [verdict is None for verdict in verdicts] == [False, True, True, False, False]


def test_values_are_compared_by_what_they_are() -> None:
    assert same_value([1, (2,)], [1, (2,)]) and not same_value([1], (1,))
    assert same_value({"a": 0.3}, {"a": 0.1 + 0.2}, 1e-6) and not same_value(0.3, 0.1 + 0.2)
    assert not same_value([1, 2], [1]) and not same_value(10**400, 1.5, 1e-6)


LONG = st.integers(20_000, 30_000).map(lambda bits: -(3**bits))
PLAIN = st.none() | st.booleans() | st.integers() | LONG | st.floats(allow_nan=False) | st.text()
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
        | st.builds(range, st.integers(), st.integers(), st.integers(1))
    ),
)


@settings(max_examples=examples(30))
@given(VALUES)
def test_values_come_through_as_they_are(value: Any) -> None:
    import json

    there = decoded(json.loads(json.dumps(encoded(value))))
    assert there == value and type(there) is type(value)
