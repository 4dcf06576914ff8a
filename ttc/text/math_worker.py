"""The process that compares mathematical answers by math-verify: a pair a line comes in, a verdict
a line goes out.

It is started as a program of its own by `ttc.text.math_equality`, and imports nothing of this
project. math-verify's own limits of time are signals, which work in a main thread alone and cannot
stop a long multiplication. Here the kernel ends the whole process once a comparison has taken its
processor time.
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
"""Two formulas whose values differ by more, relative to 1 + the larger one, are not compared by
simplifying."""


@lru_cache(maxsize=4096)
def _parsed(answer: str) -> list[Any]:
    from math_verify import parse

    parsed: list[Any] = parse(f"${answer}$", parsing_timeout=None)
    return parsed


@lru_cache(maxsize=4096)
def _value(answer: str) -> complex | None:
    """What a formula is with some positive number for each of its names; None for what is no plain
    formula."""
    import sympy

    parsed = _parsed(answer)
    if not parsed or not isinstance(parsed[0], sympy.Expr) or isinstance(parsed[0], sympy.Symbol):
        return None
    formula = parsed[0]
    if formula.has(sympy.UnevaluatedExpr):  # a percentage, which may equal two numbers
        return None
    try:
        numbers = {symbol: _number_of(symbol.name) for symbol in formula.free_symbols}
        value = complex(formula.subs(numbers).evalf())
    except Exception:
        return None
    return value if abs(value) < float("inf") else None


def _number_of(name: str) -> float:
    return 1.1 + sum(place * ord(sign) for place, sign in enumerate(name, 1)) % 89 / 97


def equal(gold: str, predicted: str) -> bool:
    """math-verify's verdict. Formulas that are far apart for some numbers are different without its
    simplifying."""
    from math_verify import verify

    left, right = _value(gold), _value(predicted)
    if left is not None and right is not None and abs(left - right) > CLEARLY * (1 + max(abs(left), abs(right))):
        return False
    return bool(verify(_parsed(gold), _parsed(predicted), timeout_seconds=None))


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
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
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
