"""CodeT (Chen et al., 2022, arXiv 2207.10397): programs and tests that agree with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event

from ttc.execution.code_tests import CallTest, failures
from ttc.task import Passes
from verifiers.programs.written_tests import Agreement, by_program


@dataclass(eq=False)
class CodeT(Agreement):
    """Dual execution agreement (section 2.2): programs that pass the same tests are a group, which
    rates its number of programs times that of tests passed, as a share of all programs times all
    tests. It compares branches that are rated together, as those of best_of_n.

    Rates: the program: how many programs and written tests agree with it.
    Cost: writing tests, once a problem; running programs.
    Use it where: programs have no tests.
    """

    def agreement(self, programs: Sequence[str], tests: Sequence[CallTest]) -> Passes[list[float]]:
        passed = yield from by_program(partial(self._passed, tests), programs)
        group = Counter(passed)
        whole = len(programs) * len(tests)
        return [group[places] * len(places) / whole if whole else 0.0 for places in passed]

    def _passed(self, tests: Sequence[CallTest], program: str, stop: Event) -> tuple[int, ...]:
        verdicts = failures(program, tests, self.limits, stop=stop)
        return tuple(place for place, verdict in enumerate(verdicts) if verdict is None)
