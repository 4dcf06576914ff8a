"""What a program in the sandbox may not do, each tried by a program that does it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.helpers.processes import finished, started
from ttc.execution.programs import Functions, Limits, Outcome, run_program
from ttc.execution.sandbox import MACHINES, protections, system_call_filter

pytestmark = pytest.mark.skipif(not protections(), reason="programs cannot be confined here")

SHORT = Limits(time_s=0.5)
REFUSALS = ("Operation not permitted", "not allowed to raise maximum limit")


def run(program: str, stdin: str = "") -> Outcome:
    return run_program(program, stdin)


def cut_off(program: str) -> str:
    outcome = run_program(program, limits=SHORT)
    assert outcome.error is not None
    return outcome.error


def test_a_program_reads_its_input_and_prints() -> None:
    assert run("print(int(input()) + 1)", "41") == Outcome("42\n")
    assert run("import sys; print(len(sys.stdin.read()))", "a\nb\n") == Outcome("4\n")
    assert run("import numpy; print(numpy.arange(4).sum())").value == "6\n"
    assert run("import sys; print(1); sys.exit(0)") == Outcome("1\n")
    assert run("print(1); 1 / 0") == Outcome("1\n", "ZeroDivisionError: division by zero (line 1)")
    assert run("import sys; sys.exit(3)").error == "it left with the exit code 3"
    assert "SyntaxError" in str(run("print(").error)


PROCESSES = {
    "a fork": "import os; os.fork()",
    "a fork bomb": "import os\nwhile True: os.fork()",
    "a process": "import subprocess; subprocess.run(['true'])",
    "another program": "import os; os.execv('/bin/true', ['true'])",
    "a spawned process": "import os; os.posix_spawn('/bin/true', ['true'], {})",
}
SIGNALS = {
    "to the parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "to all": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "to its group": "import os, signal; os.killpg(0, signal.SIGKILL)",
    "by a pipe": "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())",
    "by a pipe's ioctl": "import fcntl\nfcntl.ioctl(1, 0x8901, b'\\1\\0\\0\\0')",
}
CHANGES = {
    "a socket": "import socket; socket.socket()",
    "a local socket": "import socket; socket.socketpair()",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "another's limits": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU)",
    "priorities": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 10)",
    "modes": "import os; os.chmod('/tmp', 0o777)",
    "a folder": "import os; os.mkdir('/tmp/made')",
    "a removed file": "import os; os.unlink('/usr/bin/env')",
    "a mount": "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
    "assert c.mount(b'none', b'/tmp', b'tmpfs', 0, None) < 0\nraise OSError('Operation not "
    "permitted')",
    "a trace": "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
    "assert c.ptrace(16, 1, 0, 0) < 0\nraise OSError('Operation not permitted')",
}


def test_the_kernel_refuses() -> None:
    programs = {**PROCESSES, **SIGNALS, **CHANGES}
    all_of_them = (
        f"for name, program in {programs!r}.items():\n"
        "    try: exec(program)\n"
        "    except BaseException as error: print(name, error, sep=': ')\n"
        "    else: print(name)\n"
    )
    outcome = run(all_of_them)
    lines = outcome.value.splitlines()
    assert outcome.error is None and len(lines) == len(programs)
    assert [line for line in lines if not any(no in line for no in REFUSALS)] == []


def test_a_program_writes_no_file(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("kept")
    tmp_path.chmod(0o777)
    there.chmod(0o666)
    for how in ("w", "a", "r+"):
        for path in (there, tmp_path / "new"):
            assert run(f"open({str(path)!r}, {how!r}).write('x')").error is not None
    assert there.read_text() == "kept" and [*tmp_path.iterdir()] == [there]


@pytest.mark.skipif("files" not in protections(), reason="the kernel has no Landlock")
@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ", "/proc/1/cmdline", __file__])
def test_a_program_reads_no_files_but_pythons(path: str) -> None:
    error = run(f"print(open({path!r}).read())").error
    assert "Permission denied" in str(error) or "No such file" in str(error)


def test_what_a_path_shows(tmp_path: Path) -> None:
    """Sizes and links of all files without bubblewrap, as docs/code.md says; none within it."""
    there = tmp_path / "there"
    there.write_text("abc")
    link = tmp_path / "link"
    link.symlink_to(there)
    tmp_path.chmod(0o755)
    outcome = run(f"import os; print(os.stat({str(there)!r}).st_size, os.readlink({str(link)!r}))")
    if "bubblewrap" in protections():
        assert "No such file" in str(outcome.error)
    else:
        assert outcome == Outcome(f"3 {there}\n")


def test_a_program_sees_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "abc")
    assert "SECRET" not in run("import os; print(os.environ)").value


def test_a_program_has_no_other_files_open() -> None:
    listing = "import os\nfor i in range(64):\n  try: os.fstat(i); print(i)\n  except OSError: pass"
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        assert len(run(listing).value.split()) <= 5  # its three streams and the two pipes
    finally:
        os.close(reader)
        os.close(writer)


def test_time_memory_and_output_end() -> None:
    assert "0.5 s of processor time" in cut_off("while True: pass")
    assert "MemoryError" in str(run("x = [0] * 10**10").error)
    endless = run("while True: print('a' * 1000)")
    assert "more than 1048576 bytes" in str(endless.error) and len(endless.value) == 2**20


@pytest.mark.slow
def test_a_program_that_waits_or_ignores_the_limit_is_ended() -> None:
    endless = "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()"
    assert cut_off(endless)
    programs = (
        "import time; time.sleep(1000)",
        "import signal\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\nwhile True: pass",
        "import signal\nsignal.setitimer(signal.ITIMER_PROF, 0)\nwhile True: pass",
    )
    with ThreadPoolExecutor() as threads:
        for error in threads.map(cut_off, programs):
            assert "it took more than 6 s" in error


@pytest.mark.slow
def test_a_call_that_ends_the_process_fails_alone() -> None:
    program = (
        "import os\ndef f(x): return x\ndef leave(): os._exit(0)\ndef spin():\n  while 1: pass"
    )
    with Functions(program, SHORT) as functions:
        assert functions.call("leave", []).error == "it ended its process with code 0"
        assert functions.call("f", [1]) == Outcome(1)
        assert "processor time" in str(functions.call("spin", []).error)
        assert functions.call("f", [(2, {3: "a"})]) == Outcome((2, {3: "a"}))


@pytest.mark.slow
def test_a_program_that_answers_before_it_is_asked_stops_nobody() -> None:
    """It says what it returns, and then reads nothing any more."""
    program = (
        "import os, signal, time\n"
        "def f(x):\n"
        "    signal.setitimer(signal.ITIMER_PROF, 0)\n"
        "    for i in range(3, 64):\n"
        "        try: os.write(i, b'{\"value\": 1}\\n')\n"
        "        except OSError: pass\n"
        "    time.sleep(1000)"
    )
    with Functions(program, SHORT) as functions:
        assert functions.call("f", [1]) == Outcome(1)
        assert functions.call("f", ["a" * 10**6]).error == "it does not read what it is sent"


def test_programs_end_with_the_one_who_started_them() -> None:
    code = (
        "import threading, time\n"
        "from ttc.execution.programs import run_program, Limits\n"
        "run = lambda: run_program('while True: pass', limits=Limits(time_s=200))\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "time.sleep(500)"
    )
    with started([sys.executable, "-c", code]) as starter:
        until = time.monotonic() + 200
        while not any(map(spins, before := workers_of(starter.pid))):
            assert time.monotonic() < until, "no program was started"
            time.sleep(0.05)
    while any(map(alive, before)):
        assert time.monotonic() < until, "programs are left"
        time.sleep(0.05)


def spins(pid: int) -> bool:
    return alive(pid) and psutil.Process(pid).cpu_times().user > 1


def workers_of(pid: int) -> list[int]:
    """The processes below one."""
    below = [int(p) for t in Path(f"/proc/{pid}/task").iterdir() for p in _children(t)]
    return below + [grandchild for child in below for grandchild in workers_of(child)]


def _children(task: Path) -> list[str]:
    return (task / "children").read_text().split()


def alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_without_bubblewrap_the_kernel_alone_refuses() -> None:
    """The tests above ran within it."""
    code = (
        "from ttc.execution.sandbox import protections\n"
        "from ttc.execution.programs import run_program\n"
        "assert 'bubblewrap' not in protections() and 'system calls' in protections()\n"
        "for program in ('import os; os.fork()', 'import os; os.kill(os.getppid(), 9)',\n"
        '    \'open("/tmp/made-in-a-sandbox", "w")\', \'open("/etc/passwd")\',\n'
        "    'import socket; socket.socket()'):\n"
        "    assert 'PermissionError' in run_program(program).error, program\n"
        "print(run_program('print(1)').value)"
    )
    env = {**os.environ, "PATH": "/nowhere"}
    assert finished([sys.executable, "-c", code], check=True, env=env).stdout.strip() == "1"


def test_the_filter_is_made_for_each_machine() -> None:
    for machine in MACHINES:
        program = system_call_filter(machine)
        assert len(program) % 8 == 0 and len(program) // 8 < 4096  # BPF_MAXINSNS
