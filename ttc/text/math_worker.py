"""The process that compares mathematical answers by math-verify: pairs come in, verdicts go out.

`ttc.text.math_equality` starts it as a program, which imports nothing of this project. The limits
of math-verify are signals, which work in a main thread alone and stop no long multiplication.
Here the kernel ends the process once a comparison has taken its processor time.
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

CLEARLY = 1e-3
"""Formulas whose values differ by more, relative to 1 + the larger one, are not simplified."""


@lru_cache(maxsize=4096)
def parse_answer(answer: str) -> list[Any]:
    from math_verify import parse

    parsed: list[Any] = parse(f"${answer}$", parsing_timeout=None)
    return parsed


@lru_cache(maxsize=4096)
def _value(answer: str) -> tuple[str, complex] | None:
    """A formula's value with some positive number for each name; of an equation its right side's.

    The string is the name that an equation gives a number to, "=" for another equation, "" for a
    formula. None for anything else.
    """
    import sympy

    parsed = parse_answer(answer)
    formula = parsed[0] if parsed else None
    name = ""
    if isinstance(formula, sympy.Eq):
        name = formula.lhs.name if isinstance(formula.lhs, sympy.Symbol) else "="
        formula = formula.rhs
    if not isinstance(formula, sympy.Expr) or isinstance(formula, sympy.Symbol):
        return None  # what is one name alone is compared by letters
    if formula.has(sympy.UnevaluatedExpr):  # a percentage, which may equal two numbers
        return None
    if name and formula.free_symbols:
        name = "="
    try:
        numbers = {symbol: _number_of(symbol.name) for symbol in formula.free_symbols}
        value = complex(formula.subs(numbers).evalf())
    except Exception:
        return None
    return (name, value) if abs(value) < float("inf") else None


def _apart(gold: str, predicted: str) -> bool:
    """Whether two formulas are far apart for some numbers.

    A formula is compared with an equation's right side, as math-verify does, and two equations only
    if both name one number.
    """
    left, right = _value(gold), _value(predicted)
    if left is None or right is None:
        return False
    if left[0] and right[0] and (left[0] != right[0] or left[0] == "="):
        return False
    size = max(abs(left[1]), abs(right[1]))
    return abs(left[1] - right[1]) > CLEARLY * (1 + size)


def _number_of(name: str) -> float:
    return 1.1 + sum(place * ord(sign) for place, sign in enumerate(name, 1)) % 89 / 97


def equal(gold: str, predicted: str) -> bool:
    """math-verify's verdict; formulas that are far apart for some numbers are not simplified."""
    from math_verify import verify

    if _apart(gold, predicted):
        return False
    return bool(verify(parse_answer(gold), parse_answer(predicted), timeout_seconds=None))


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
