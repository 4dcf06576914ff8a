"""Processes that a test starts: none is waited for without a limit, and each hears Ctrl-C."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LIMIT_S = 500
"""Less than a test may take, so that it is the process that is named."""

DIES = """
import os, runpy, signal, sys
from experiments.runs.records import RunFolder

append, left = RunFolder.append, int(sys.argv[2])

def append_and_die(folder, *records):
    global left
    append(folder, *records)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

RunFolder.append = append_and_die
module = sys.argv[1]
del sys.argv[1:3]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def run_until_killed(module: str, records: int, *arguments: str) -> None:
    """A command whose process is killed once it has written so many records."""
    words = [sys.executable, "-c", DIES, module, str(records), *arguments]
    assert finished(words).returncode == -signal.SIGKILL


def finished(words: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """The process once it has ended, with all that it wrote. how: as for `subprocess.run`."""
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, **how)


@contextmanager
def started(words: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """The process while it runs; what is left of it at the end is killed. how: as for
    `subprocess.Popen`.

    It hears SIGINT also where the suite itself does not, as under nohup or behind an &: a child
    would inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(words, text=True, **how)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
