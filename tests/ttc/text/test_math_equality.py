"""Comparing by math-verify cannot hang, works in any thread, and leaves no process behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ttc.errors import TTCError
from ttc.text import math_equality
from ttc.text.math_equality import MathPool, MathWorker, math_equal

TOWER = r"\int_0^1 9^{9^{9^9}} \, dx"


@pytest.fixture
def pool() -> Iterator[MathPool]:
    pool = MathPool(processes=2, cpu_s=2)
    yield pool
    pool.close()


@pytest.mark.slow
def test_a_comparison_without_end_counts_as_not_equal_and_the_next_one_works(
    pool: MathPool, caplog: pytest.LogCaptureFixture
) -> None:
    """In a thread, where math-verify's own limits cannot work: this froze the process."""
    verdicts: list[bool | None] = []
    with caplog.at_level(logging.WARNING, logger="ttc"):
        thread = threading.Thread(target=lambda: verdicts.append(pool.equal("5", TOWER)))
        thread.start()
        thread.join(60)
    assert verdicts == [None] and pool.undecided == 1
    assert "took more than 2 s of processor time: they count as not equal" in caplog.text
    assert pool.equal(r"\sqrt{8}", r"2\sqrt{2}") is True and pool.undecided == 1


@pytest.mark.slow
def test_grading_goes_on_and_counts_it(monkeypatch: pytest.MonkeyPatch, pool: MathPool) -> None:
    monkeypatch.setattr(math_equality, "shared_pool", pool)
    # the tower alone takes its time once, and not with each other answer
    for gold in ("71", "72", "73"):
        assert not math_equal(gold, TOWER + "+71")
    assert math_equality.undecided() == 1


@pytest.mark.slow
def test_threads_share_the_workers(pool: MathPool) -> None:
    pairs = [(f"{i}x", f"x+{i - 1}x") for i in range(2, 40)]
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda pair: pool.equal(*pair), pairs))
    assert 1 <= len(pool.idle) <= 2


@pytest.mark.slow
def test_a_worker_that_died_is_replaced(pool: MathPool) -> None:
    assert pool.equal("x", "x")
    (worker,) = pool.idle
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait(100)
    assert pool.equal("x", "x") is None and pool.undecided == 1
    assert pool.equal("x", "x") is True


@pytest.mark.slow
def test_a_worker_that_says_nothing_is_given_up() -> None:
    worker = MathWorker()
    os.kill(worker.process.pid, signal.SIGSTOP)
    worker.wall_s = 0.2
    assert worker.equal("x", "x") is None and worker.reason == "took more than 0.2 s"
    worker.close()
    assert worker.process.poll() == -signal.SIGKILL


@pytest.mark.slow
def test_ctrl_c_is_not_the_workers_to_handle(pool: MathPool) -> None:
    assert pool.equal("x", "x")
    os.kill(pool.idle[0].process.pid, signal.SIGINT)
    assert pool.equal("x+1", "1+x")


def test_a_machine_that_starts_no_process_is_named(
    monkeypatch: pytest.MonkeyPatch, pool: MathPool
) -> None:
    """Not a raw OSError; and the pool is as before, once there is room."""

    def popen(*words: Any, **how: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(math_equality.subprocess, "Popen", popen)
        for _ in range(3):  # more than there are workers
            with pytest.raises(
                TTCError, match=r"no process can be started for math-verify.*: .*Resource temp"
            ):
                pool.equal("x+1", "1+x")
    assert pool.equal("x+1", "1+x") is True and pool.undecided == 0


def test_long_answers_are_compared_by_their_spelling_alone() -> None:
    before = math_equality.undecided()
    assert not math_equal("5", "x+" * 1001 + "x") and math_equality.undecided() == before


SCRIPT = """
import atexit, os, sys
from ttc.text.equality import same_answer
from ttc.errors import TTCError
from ttc.text import math_equality

assert not math_equality.shared_pool.idle  # nothing is started before it is needed
assert same_answer("x+1", "1 + x", "math")
atexit.register(lambda: same_answer("x+3", "3 + x", "math") or os._exit(3))  # also while it ends
child = os.fork()
assert same_answer("x+2", "2 + x", "math")  # in both: a fork has workers of its own
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(math_equality.shared_pool.idle[0].process.pid, "torch" in sys.modules)
"""


@pytest.mark.slow
def test_a_plain_script_may_grade_and_ends_its_workers(tmp_path: Path) -> None:
    """No `if __name__ == "__main__"` is asked for, as multiprocessing would."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    pid, torch = ran.stdout.split()
    assert torch == "False"
    until = time.monotonic() + 100
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
