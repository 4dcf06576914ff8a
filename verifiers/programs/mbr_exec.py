"""MBR-exec (Shi et al., 2022, arXiv 2204.11454): the program whose outputs most others share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

from ttc.execution.code_tests import CallTest
from ttc.execution.programs import Functions
from ttc.task import Passes
from verifiers.programs.written_tests import Agreement, by_program


@dataclass(eq=False)
class MBRExec(Agreement):
    """The share of the other programs that give the same outputs for the inputs of all tests,
    whatever these expect (section 2). A program that fails on an input agrees with none; one alone
    that does not fail rates 1. It compares branches that are rated together, as those of best_of_n.

    Rates: the program: the share of the other programs with the same outputs.
    Cost: as `codet`.
    Use it where: as `codet`.
    """

    def agreement(self, programs: Sequence[str], tests: Sequence[CallTest]) -> Passes[list[float]]:
        outputs = yield from by_program(partial(self._outputs, tests), programs)
        if len(programs) == 1:
            return [float(outputs[0] is not None)]
        others = len(programs) - 1
        return [0.0 if own is None else (outputs.count(own) - 1) / others for own in outputs]

    def _outputs(self, tests: Sequence[CallTest], program: str, stop: Event) -> list[Any] | None:
        values = []
        with Functions(program, self.limits) as functions:
            if functions.error is not None:
                return None
            for test in tests:
                outcome = functions.call(test.function, test.arguments)
                if outcome.error is not None or stop.is_set():
                    return None
                values.append(outcome.value)
        return values
