"""A tool that runs a program in the project's sandbox."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ttc.checks import check_options
from ttc.execution.programs import Limits, ProgramMiB, ProgramSeconds, check_sandbox, run_program
from ttc.tools.base import Tool, ToolError, Tools

MIB = 2**20


@dataclass(frozen=True)
class PythonTools(Tools):
    """The tool `python`: each call is a program of its own in the sandbox
    (`ttc.execution.sandbox`), and its answer is what it prints. The value of its last line is
    printed too, as in a notebook.

    cpu_s: processor seconds of a program. memory_mib: its memory.
    Raises TTCError where this machine cannot confine a program.
    """

    tools: Sequence[Any] = field(default=(), init=False)
    cpu_s: ProgramSeconds = 5.0
    memory_mib: ProgramMiB = 1024

    def __post_init__(self) -> None:
        check_options(self)
        check_sandbox()
        limits = Limits(self.cpu_s, self.memory_mib * MIB)

        def python(code: str) -> str:
            """Run a Python program and get what it prints.

            Args:
                code: the program
            """
            outcome = run_program(printing_its_value(code), limits=limits)
            printed = str(outcome.value or "")
            if outcome.error is not None:
                raise ToolError(f"{outcome.error}\n{printed}".strip())
            return printed.rstrip("\n") or "(it printed nothing)"

        object.__setattr__(self, "tools", (Tool.of(python),))
        super().__post_init__()


def printing_its_value(code: str) -> str:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return code
    statements = ast.parse("_ = 0\nif _ is not None:\n    print(_)").body
    assignment = statements[0]
    assert isinstance(assignment, ast.Assign)
    assignment.value = last.value
    tree.body[-1:] = statements
    return ast.unparse(ast.fix_missing_locations(tree))
