"""Reading programs out of texts, and one spelling of each."""

from __future__ import annotations

import ast
import re

_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?:`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n`]*$", re.MULTILINE
)
_BEGINS = re.compile(r"^(?:def|class|import|from|async def|@|[A-Za-z_]\w*[ \t]*=)", re.MULTILINE)
_DEFINES = re.compile(r"^[ \t]*(?:async def|def|class)\b", re.MULTILINE)
_DEFINES_NO_TEST = re.compile(r"^(?:async def|def|class)[ \t]++(?!test_|Test)\w", re.MULTILINE)
_PYTHON = ("", "python", "python3", "py", "py3")
CUTS = 8
"""How often what follows a program is cut off at the line that is no Python."""


def fenced_blocks(text: str) -> list[str]:
    """What stands between fences (three backticks or tildes), of Python or of no named language.
    The last block may have no end. A block in a list loses its fence's indentation."""
    marks = list(_FENCE.finditer(text))
    blocks = []
    while marks:
        begin = marks.pop(0)
        end = marks.pop(0) if marks else None
        if begin["language"].lower() in _PYTHON:
            block = text[begin.end() + 1 : None if end is None else end.start()]
            blocks.append(_outdented(block, begin["indent"]))
    return blocks


def _outdented(block: str, indent: str) -> str:
    return "".join(line.removeprefix(indent) for line in block.splitlines(keepends=True))


def in_a_block(text: str) -> bool:
    return len(_FENCE.findall(text)) % 2 == 1


def find_program(text: str, strict: bool = False) -> str | None:
    """The program that a text gives, or None: the last fenced block that defines a function or a
    class that is no test, else any function or class, else the last one that is not blank.

    Without fences, and unless `strict`, what stands from the first line of code on, as far as it is
    Python and defines something. Blocks are taken as they are.
    """
    blocks = [block.rstrip() for block in fenced_blocks(text) if block.strip()]
    if blocks:
        for defines in _DEFINES_NO_TEST, _DEFINES:
            if defining := [block for block in blocks if defines.search(block)]:
                return defining[-1]
        return blocks[-1]
    begin = None if strict else _BEGINS.search(text)
    if begin is None:
        return None
    lines = text[begin.start() :].split("\n")
    for _ in range(CUTS):
        program = "\n".join(lines).rstrip()
        wrong = _wrong_line(program)
        if wrong is None:
            return program if _DEFINES.search(program) else None
        lines = lines[: wrong - 1]
    return None


def _wrong_line(program: str) -> int | None:
    try:
        ast.parse(program)
    except SyntaxError as error:
        return min(max(1, error.lineno or 1), program.count("\n") + 1)
    except (ValueError, RecursionError, MemoryError):
        return 1
    return None


def normalized(program: str) -> str:
    try:
        return ast.unparse(ast.parse(program))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return program.strip()
