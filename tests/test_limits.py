"""No test depends on how the suite was started, or waits without a limit."""

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers.processes import LIMIT_S, started

TESTS = Path(__file__).parent
RUNS = ("run", "call", "check_call", "check_output")
WAITS = ("join", "wait", "communicate", "acquire")


def endless_waits(source: str) -> Iterator[int]:
    """The lines that run a process, or wait for one or for a thread, and give no limit.

    `result()` waits in files that use threads' futures; that of an engine's call computes it.
    """
    threads = "concurrent.futures" in source or "run_coroutine_threadsafe" in source
    waits = [*WAITS, "result"] if threads else WAITS
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        given = {keyword.arg for keyword in call.keywords}
        is_run = ast.unparse(call.func.value) == "subprocess" and call.func.attr in RUNS
        is_wait = call.func.attr in waits and not call.args
        if (is_run or is_wait) and "timeout" not in given:
            yield call.lineno


def test_a_wait_without_a_limit_is_seen() -> None:
    source = (
        "subprocess.run(x)\nthread.join()\nsubprocess.run(x, timeout=3)\nthread.join(3)\n' "
        "'.join(words)\n"
    )
    assert list(endless_waits(source)) == [1, 2]
    assert list(endless_waits("engine.extend(x).result()\n")) == []
    assert list(endless_waits("import concurrent.futures\nfuture.result()\n")) == [2]


def test_no_test_waits_without_a_limit() -> None:
    lines = {
        f"{file.relative_to(TESTS)}:{line}"
        for file in TESTS.rglob("*.py")
        for line in endless_waits(file.read_text())
    }
    assert not lines


def test_a_test_that_hangs_is_ended(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.hasplugin("timeout")
    assert LIMIT_S < float(pytestconfig.getini("timeout")) <= 600


def test_examples_of_hypothesis_are_the_same_each_time_and_have_no_deadline() -> None:
    assert settings().derandomize and settings().deadline is None


def test_a_process_hears_ctrl_c_where_the_suite_does_not() -> None:
    waiting = f"""
import time
try:
    print("ready", flush=True)
    time.sleep({LIMIT_S})
except KeyboardInterrupt:
    exit(7)
"""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup
    try:
        with started([sys.executable, "-c", waiting], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=LIMIT_S) == 7
    finally:
        signal.signal(signal.SIGINT, before)
