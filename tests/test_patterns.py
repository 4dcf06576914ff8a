"""Every regular expression of the project takes time in proportion to its text.

Each is run on texts that loop over its own words and characters, of 2^10 to 2^16 characters.
Four times the text may take eight times as long and a little: a quadratic pattern takes sixteen
times. CPU time is counted, and what is too long is measured again.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ttc", "search", "verifiers", "experiments")
METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
MAKERS = ("re.compile", "spaced(")
"""A module whose text has none of these makes no pattern."""
ONCE = ("match", "fullmatch")
"""What begins at the first character alone."""
SPARE_S = 0.01
HOPELESS_S = 2
"""What takes longer is not measured again."""
GROWTH = 8
"""How much longer four times the text may take."""
BOUNDED = {
    "experiments/lab/": "it reads this project's own files",
    "experiments/runs/provenance.py": "it reads this project's own files",
    "ttc/compiling.py": "it reads this project's own files",
    "ttc/text/thinking_switch.py": "it reads a model's chat template, once",
    "ttc/text/formulas.py: _REPEATING": "answers of more than 2,000 characters are not read",
    "ttc/text/number_answers.py: _BARE_MINUS": "it reads 12 characters",
    "experiments/runs/question_kind.py": "it reads the question that a user types",
}
"""Where patterns never meet a text of others, and why."""

Used = tuple[str, "re.Pattern[Any]", bool]
"""Where a pattern stands, the pattern, and whether it is only used from the first character on."""


@cache
def sources() -> dict[str, str]:
    files = (file for name in PACKAGES for file in sorted((ROOT / name).rglob("*.py")))
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


def inline() -> Iterator[Used]:
    """The patterns in calls as `re.sub(r"...", ...)`."""
    for file, text in sources().items():
        if file.startswith(tuple(BOUNDED)):
            continue
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            module, method = node.func.value, node.func.attr
            if not (isinstance(module, ast.Name) and module.id == "re" and method in METHODS):
                continue
            given = node.args[0]
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                flags = re.MULTILINE if "MULTILINE" in ast.unparse(node) else 0
                yield f"{file}:{node.lineno}", re.compile(given.value, flags), method in ONCE


def compiled() -> Iterator[Used]:
    """The patterns that the project's modules, classes and tables hold."""
    seen: set[int] = set()
    for file, text in sources().items():
        if not any(word in text for word in MAKERS) or file.startswith(tuple(BOUNDED)):
            continue
        try:
            module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        except ImportError:  # a package that is not installed
            continue
        for name, pattern in held(vars(module), 3):
            place = f"{file}: {name}"
            if id(pattern) not in seen and not place.startswith(tuple(BOUNDED)):
                seen.add(id(pattern))
                yield place, pattern, only_once(name, file)


def held(value: Any, depth: int, name: str = "") -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, re.Pattern):
        yield name, value
    elif depth and isinstance(value, dict):
        for key, inner in list(value.items()):
            yield from held(inner, depth - 1, str(key))
    elif depth and isinstance(value, list | tuple):
        for inner in value:
            yield from held(inner, depth - 1, name)
    elif depth and isinstance(value, type) and value.__module__.startswith(PACKAGES):
        yield from held(dict(vars(value)), depth - 1, value.__name__)


def only_once(name: str, file: str) -> bool:
    used = set[str]()
    texts = [sources()[file]] if name.startswith("_") else sources().values()
    for text in texts:
        used |= set(re.findall(rf"\b{re.escape(name)}\.({'|'.join(METHODS)})\b", text))
    return bool(used) and used <= set(ONCE)


def parts(parsed: Any) -> tuple[list[str], set[str]]:
    """The words of a pattern, and a character of each of its classes."""
    words: list[str] = []
    singles: set[str] = set()
    word = ""
    for operation, argument in parsed:
        if operation is _constants.LITERAL:
            word += chr(argument)
            continue
        if word:
            words.append(word)
            word = ""
        if operation is _constants.IN:
            singles |= {sign for item in argument for sign in of_class(*item)}
        elif operation in (_constants.ANY, _constants.NOT_LITERAL):
            singles.add("a")
        else:
            for inner in nested(argument):
                more, others = parts(inner)
                words += more
                singles |= others
    return [*words, *([word] if word else [])], singles


def of_class(kind: Any, argument: Any) -> Iterator[str]:
    if kind is _constants.LITERAL:
        yield chr(argument)
    elif kind is _constants.RANGE:
        yield chr(argument[0])
    elif kind is _constants.CATEGORY:
        category = str(argument)
        yield "1" if "DIGIT" in category else " " if "SPACE" in category else "a"


def nested(argument: Any) -> Iterator[Any]:
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for inner in argument:
            yield from nested(inner)


def parsed(pattern: re.Pattern[Any]) -> Any:
    raw = pattern.pattern
    text = raw if isinstance(raw, str) else raw.decode("latin-1")
    return _parser.parse(text, pattern.flags & ~re.UNICODE)


def unbounded(parsed: Any) -> int:
    """How many repeats without a limit a pattern has."""
    count = 0
    for _, argument in parsed:
        if isinstance(argument, tuple) and len(argument) == 3:
            count += argument[1] is _constants.MAXREPEAT
        count += sum(map(unbounded, nested(argument)))
    return count


def can_be_slow(pattern: re.Pattern[Any], once: bool) -> bool:
    """A search tries each character: one repeat makes it quadratic, a match needs two."""
    return unbounded(parsed(pattern)) > once


def texts(pattern: re.Pattern[Any], all_begins: bool = True) -> list[tuple[str, str]]:
    """Beginnings, and what is repeated after each."""
    words, singles = parts(parsed(pattern))
    words = list(dict.fromkeys(words))[:8]
    # what stands for others is left out where there are many
    few = sorted(singles, key=lambda sign: (sign not in " \n\ta1.,", sign))[:8]
    units = list(dict.fromkeys([*words, *few, " ", "\n", "a", "1"]))
    joined = "".join(words[:3])
    begins = list(dict.fromkeys(["", *words, joined, f"{joined} ", *(f"{w}a" for w in words[:3])]))
    if not all_begins:
        begins = ["", joined]
    more = [f"{word}{sign}" for word in words[:4] for sign in " \na"]
    return [*product(begins, units), *product(["", joined], more)]


def seconds(pattern: re.Pattern[Any], text: str, once: bool) -> float:
    given: Any = text if isinstance(pattern.pattern, str) else text.encode("utf-8", "replace")
    begin = time.process_time()
    if once:
        pattern.match(given)
        pattern.fullmatch(given)
    else:
        for _ in pattern.finditer(given):
            pass
    return time.process_time() - begin


def grows(run: Callable[[int], float], longest: int) -> int | None:
    """The length at which a pattern takes too long, None for one that never does."""
    before, length = run(2**8), 2**10
    while length <= longest:
        now = run(length)
        for _ in range(3):
            if now <= GROWTH * before + SPARE_S or now > HOPELESS_S:
                break
            before = max(before, run(length // 4))
            now = min(now, run(length))
        if now > GROWTH * before + SPARE_S:
            return length
        before, length = now, 4 * length
    return None


def not_linear(
    pattern: re.Pattern[Any], once: bool, begin: str, unit: str, longest: int
) -> int | None:
    def run(length: int) -> float:
        return seconds(pattern, f"{begin}{unit * (length // len(unit))}!", once)

    return grows(run, longest)


def check(longest: int, all_begins: bool) -> None:
    slow = []
    for place, pattern, once in [*compiled(), *inline()]:
        if not can_be_slow(pattern, once):
            continue
        for begin, unit in texts(pattern, all_begins):
            if (length := not_linear(pattern, once, begin, unit, longest)) is not None:
                slow.append(f"{place}: {pattern.pattern!r} on {begin!r} and {length} of {unit!r}")
                break
    assert not slow, "\n".join(slow)


@pytest.mark.slow
def test_a_pattern_that_is_not_linear_is_found() -> None:
    for known in (r"```python\s*(.*?)\s*```", r"[ \t]*x", r"(?:(?!<end>).)*<end>"):
        pattern = re.compile(known, re.DOTALL)
        assert can_be_slow(pattern, once=False)
        assert any(not_linear(pattern, False, *text, 2**14) for text in texts(pattern)), known


def test_patterns_are_linear() -> None:
    check(2**12, all_begins=False)


@pytest.mark.slow
def test_patterns_are_linear_in_long_texts() -> None:
    check(2**14, all_begins=True)
