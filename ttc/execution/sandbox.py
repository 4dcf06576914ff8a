"""The sandbox: what a program that a model wrote may do on this machine (docs/code.md).

It is for Linux on x86-64 and ARM64. Each program runs in a Python process of its own, which gives
up its rights before it reads a line of the program (`confine`); where bubblewrap is installed, in
name spaces of its own too (`wrapped`). The kernel refuses every system call that is not in
`ALLOWED` (seccomp), and every file but Python's own and the system's libraries (Landlock). The
process never holds the expected output of a test: outputs are compared in another one. Where there
is neither seccomp nor bubblewrap, no program is run.
"""

import ctypes
import json
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # the order of a set of texts is the same in equal runs
}

OPEN_FILES = 64
CPU_S = 600
"""Processor seconds after which the kernel ends a process that nothing else has ended."""

# ---------------------------------------------------------------- system calls

ALLOWED: Mapping[str, tuple[int | None, int | None]] = {
    # numbers on x86-64 and ARM64: files, to read
    "read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "close": (3, 57),
    "close_range": (436, 436), "lseek": (8, 62), "getdents64": (217, 61), "getcwd": (79, 17),
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79),
    "statx": (332, 291), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78),
    # what is open already
    "write": (1, 64), "writev": (20, 66), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "pipe": (22, None), "pipe2": (293, 59), "poll": (7, None), "ppoll": (271, 73),
    "select": (23, None), "pselect6": (270, 72), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "eventfd2": (290, 19),
    # memory and threads
    "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "madvise": (28, 233), "brk": (12, 214), "futex": (202, 98), "set_robust_list": (273, 99),
    "rseq": (334, 293), "membarrier": (324, 283), "arch_prctl": (158, None),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168),
    # its own signals and time
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "setitimer": (38, 103), "getitimer": (36, 102), "alarm": (37, None),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "getrusage": (98, 165), "restart_syscall": (219, 128),
    # who and where it is, random numbers, the end
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "uname": (63, 160),
    "sysinfo": (99, 179), "getrlimit": (97, 163), "getrandom": (318, 278), "exit": (60, 93),
    "exit_group": (231, 94),
}  # fmt: skip
"""System calls that are allowed whatever their arguments are; None where the machine has none."""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of `ALLOWED`, and the kernel's name for the machine."""

_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050001
_MISSING = 0x00050026
_KILL = 0x80000000
"""Verdicts: allowed, refused as not permitted, refused as unknown to the kernel, end the
process."""

Instruction = tuple[int, int, int, int]


def _argument(place: int, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * place + 4 * high)


def _verdict(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _unless_any_bit(place: int, bits: int) -> list[Instruction]:
    return [_argument(place), (_ANY_BIT, 0, 1, bits), _verdict(_REFUSE), _verdict(_ALLOW)]


def _if_one_of(place: int, values: Sequence[int]) -> list[Instruction]:
    tests = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [_argument(place), *tests, _verdict(_REFUSE), _verdict(_ALLOW)]


def _conditional() -> list[tuple[tuple[int | None, int | None], list[Instruction]]]:
    writing = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
    shares_all = 0x00010000  # CLONE_THREAD
    thread = [_argument(0), (_ANY_BIT, 1, 0, shares_all), _verdict(_REFUSE), _verdict(_ALLOW)]
    only_read = [  # its own limits
        *(_argument(0), (_EQUAL, 1, 0, 0), _verdict(_REFUSE)),
        *(_argument(2), (_EQUAL, 1, 0, 0), _verdict(_REFUSE)),
        *(_argument(2, high=True), (_EQUAL, 1, 0, 0), _verdict(_REFUSE), _verdict(_ALLOW)),
    ]
    duplicates_and_flags = (0, 1, 2, 3, 4, 1030)  # F_SETOWN would send signals to others
    about_terminals = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)
    return [
        ((2, None), _unless_any_bit(1, writing)),  # open
        ((257, 56), _unless_any_bit(2, writing)),  # openat
        ((56, 220), thread),  # clone
        ((435, 435), [_verdict(_MISSING)]),  # clone3: its arguments are hidden; clone is tried
        ((302, 261), only_read),  # prlimit64
        ((72, 25), _if_one_of(1, duplicates_and_flags)),  # fcntl
        ((16, 29), _if_one_of(1, about_terminals)),  # ioctl
    ]


def system_call_filter(machine: str) -> bytes:
    """The seccomp filter of this machine, as the kernel reads it."""
    column, architecture = MACHINES[machine]
    program: list[Instruction] = [
        *((_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), _verdict(_KILL)),
        *((_LOAD, 0, 0, 0), (_AT_LEAST, 0, 1, 0x40000000), _verdict(_KILL)),  # another set of calls
    ]
    rules = [*_conditional(), *((numbers, [_verdict(_ALLOW)]) for numbers in ALLOWED.values())]
    for numbers, rule in rules:
        if (number := numbers[column]) is not None:
            program += [(_EQUAL, 0, len(rule), number), *rule]
    program.append(_verdict(_REFUSE))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


# ---------------------------------------------------------------- giving up rights


def confine(memory_bytes: int, readable: Sequence[str]) -> list[str]:
    """Give up the rights of this process for good, but an address space and folders to read.
    Returns the names of what holds from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    _limit(memory_bytes)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the one who started it
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    active = ["limits"]
    if libc.unshare(0x10000000 | 0x40000000 | 0x08000000) == 0:  # CLONE_NEWUSER, _NEWNET, _NEWIPC
        active.append("no network")
    if _read_alone(libc, readable):
        active.append("files")
    if _filter_calls(libc):
        active.append("system calls")
    return active


def _limit(memory_bytes: int) -> None:
    import resource  # which Windows lacks, where nothing is run

    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CPU: CPU_S,
    }
    for name, value in limits.items():
        hard = resource.getrlimit(name)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (limit, limit))


def _filter_calls(libc: ctypes.CDLL) -> bool:
    if platform.machine() not in MACHINES:
        return False
    program = ctypes.create_string_buffer(system_call_filter(platform.machine()))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    rules = Program((len(program) - 1) // 8, ctypes.addressof(program))
    return bool(libc.prctl(22, 2, ctypes.byref(rules), 0, 0) == 0)  # PR_SET_SECCOMP, with a filter


def _read_alone(libc: ctypes.CDLL, readable: Sequence[str]) -> bool:
    create, add, restrict = 444, 445, 446
    every_right = ctypes.c_uint64((1 << 13) - 1)  # of Landlock's first version
    rules = libc.syscall(create, ctypes.byref(every_right), ctypes.c_size_t(8), 0)
    if rules < 0:
        return False
    try:
        for path in filter(os.path.exists, readable):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            read = (1 << 2) | ((1 << 3) if os.path.isdir(path) else 0)  # files, folders
            rule = ctypes.create_string_buffer(struct.pack("=Qi", read, place))
            libc.syscall(add, rules, 1, rule, 0)
            os.close(place)
        return bool(libc.syscall(restrict, rules, 0) == 0)
    finally:
        os.close(rules)


# ---------------------------------------------------------------- for the one who starts it


def readable_paths() -> list[str]:
    packages = [p for p in sys.path if p.rstrip("/").endswith(("site-packages", "dist-packages"))]
    libraries = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom"]
    standard = [str(Path(prefix, "lib")) for prefix in (sys.base_prefix, sys.prefix)]
    paths = dict.fromkeys([*libraries, *standard, *packages, os.devnull])
    return [path for path in paths if os.path.exists(path)]


@contextmanager
def fixed_addresses() -> Iterator[None]:
    """Processes that this thread starts meanwhile have the same addresses in equal runs, and so the
    same hashes of objects, where the kernel lets it."""
    personality = ctypes.CDLL(None).personality
    before = personality(ctypes.c_ulong(0xFFFFFFFF))  # which changes nothing
    personality(ctypes.c_ulong(before | 0x0040000))  # ADDR_NO_RANDOMIZE
    try:
        yield
    finally:
        personality(ctypes.c_ulong(before))


def wrapped(words: Sequence[str], readable: Sequence[str]) -> list[str]:
    bubblewrap = _bubblewrap()
    if bubblewrap is None:
        return list(words)
    needed = [*readable, sys.executable, sys.base_prefix, str(Path(__file__).parent)]
    binds = [word for path in dict.fromkeys(needed) for word in ("--ro-bind", path, path)]
    return [*bubblewrap, "--dev", "/dev", "--tmpfs", "/tmp", *binds, "--", *words]


@lru_cache
def _bubblewrap() -> list[str] | None:
    program = shutil.which("bwrap")
    if program is None or sys.platform != "linux":
        return None
    words = [program, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    tried = [*words, "--ro-bind", "/", "/", "--", "/bin/true"]
    done = subprocess.run(tried, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return words if done.returncode == 0 else None


@lru_cache
def protections() -> tuple[str, ...]:
    """What holds on this machine: of "limits", "no network", "files", "system calls" and
    "bubblewrap". Empty where programs cannot be run."""
    if sys.platform != "linux":
        return ()
    code = f"import json, sandbox; print(json.dumps(sandbox.confine(2**30, {readable_paths()!r})))"
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); {code}"
    tried = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    active = json.loads(tried.stdout) if tried.returncode == 0 else []
    wrapper = ["bubblewrap"] if _bubblewrap() is not None else []
    if "system calls" not in active and not wrapper:
        return ()
    return (*active, *wrapper)
