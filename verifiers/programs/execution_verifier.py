"""Programs are rated by running them."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import ClassVar, TypeVar

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.checks import Options, Probability
from ttc.execution.code_tests import failures, shown_tests, whole_program
from ttc.execution.programs import Functions, Limits, ProgramMiB, ProgramSeconds, check_sandbox
from ttc.passes.ratings import pass_by_pass
from ttc.task import Passes
from ttc.text.code import fenced_blocks, find_program, in_a_block

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MIB = 2**20
LOOK_S = 0.02


@dataclass(frozen=True)
class ExecutionVerifier(Options):
    """The share of a problem's shown tests that a branch's program passes, in a sandbox.

    Without any test, a program rates 1 if it can be loaded. A branch without a program rates 0, one
    that is still being written `neutral`.

    neutral: that rating.
    time_s: processor seconds for a call or a run. memory_mib: memory of a program.
    Raises TTCError where this machine cannot confine a program.

    Rates: the program: the share of the shown tests that it passes.
    Cost: no tokens; running a program.
    Use it where: answers are programs.
    """

    answer_kinds: ClassVar[tuple[str, ...]] = ("code",)

    neutral: Probability = 0.5
    time_s: ProgramSeconds = 5.0
    memory_mib: ProgramMiB = 1024

    @property
    def limits(self) -> Limits:
        return Limits(self.time_s, self.memory_mib * MIB)

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        check_sandbox()
        programs = [(program_of(branch), branch.root_id) for branch in branches]
        tests = {
            branch.root_id: shown_tests(question, branch.about)
            for question, branch in zip(questions, branches, strict=True)
        }

        def share(key: tuple[str, int], stop: Event) -> float:
            program, root = key
            verdicts = failures(program, tests[root], self.limits, stop=stop)
            if verdicts:
                return verdicts.count(None) / len(verdicts)
            with Functions(program, self.limits) as functions:
                return float(functions.error is None)

        shares = yield from runs_of_each(
            share, ((p, root) for p, root in programs if p is not None)
        )
        without = [0.0 if branch.finished else self.neutral for branch in branches]
        return [
            [score if program is None else shares[program, root]]
            for (program, root), score in zip(programs, without, strict=True)
        ]


def program_of(branch: Branch) -> str | None:
    """The program of a branch; None for none, or one that is not at its end."""
    text = branch.answer_text
    if text is None or (not branch.finished and (in_a_block(text) or not fenced_blocks(text))):
        return None
    program = find_program(text)
    return None if program is None else whole_program(program, branch.about)


def runs_of_each(function: Callable[[K, Event], V], keys: Iterable[K]) -> Passes[dict[K, V]]:
    """What a function that runs programs gives for each key, in threads; it yields every `LOOK_S`
    seconds. The function's second argument is set where nobody waits for the rest."""
    different = list(dict.fromkeys(keys))
    stop = Event()
    pool = ThreadPoolExecutor(max(1, min(len(different), os.cpu_count() or 1)))
    try:
        runs = [pool.submit(function, key, stop) for key in different]
        while wait(runs, LOOK_S).not_done:
            yield
        return dict(zip(different, [run.result() for run in runs], strict=True))
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
