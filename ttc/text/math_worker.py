"""The process that compares mathematical answers: pairs come in, verdicts go out.

`ttc.text.math_equality` starts it as a program. The limits of math-verify are signals, which work
in a main thread alone and stop no long multiplication. Here the kernel ends the process once a
comparison has taken its processor time.
"""

import contextlib
import json
import logging
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

MEMORY_BYTES = 4 * 2**30
"""What a comparison may allocate: a power tower asks for as much as there is."""


@lru_cache(maxsize=4096)
def parse_answer(answer: str) -> Any:
    """What math-verify's parser reads as a whole, else None: no number inside of a formula."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from math_verify.grader import should_treat_as_complex

    try:
        return latex2sympy(
            answer,
            is_real=not should_treat_as_complex(answer),
            normalization_config=NormalizationConfig(malformed_operators=True, nits=True),
        )
    except Exception:
        return None


def equal(gold: str, predicted: str) -> bool:
    """Whether two formulas are equal; math-verify decides about integrals, sums and limits."""
    from ttc.text.formula_equality import equal_formulas
    from ttc.text.formulas import read_formula
    from ttc.text.typed_math import in_latex

    left, right = read_formula(gold), read_formula(predicted)
    if left is not None and right is not None:
        return equal_formulas(left, right)
    from math_verify import verify

    one, other = parse_answer(in_latex(gold)), parse_answer(in_latex(predicted))
    if one is None or other is None:
        return False
    return any(verify(*pair, timeout_seconds=None) for pair in ((one, other), (other, one)))


def main() -> None:
    """sys.argv: the module search path of the process that asks, as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the asking process's to handle
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    sys.path[:] = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever a library prints is no verdict
    logging.disable(logging.CRITICAL)

    def say(verdict: object) -> None:
        answers.write(json.dumps(verdict) + "\n")
        answers.flush()

    try:
        equal("1", "x")  # imports what is needed
    except Exception as error:
        say(f"{type(error).__name__}: {error}")
        return
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard))
    say("ready")
    for line in sys.stdin:
        gold, predicted, cpu_s = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            verdict = equal(gold, predicted)
        except Exception:  # RecursionError and MemoryError among them
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        say(verdict)


if __name__ == "__main__":
    main()
