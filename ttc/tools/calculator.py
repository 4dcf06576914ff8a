"""A tool that computes what an expression of arithmetic comes to: the calculator of GSM8K."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ttc.checks import PositiveInt
from ttc.tools.base import Tool, ToolError, Tools
from ttc.tools.formats import ToolFormat

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
MOST = 1e30
"""The largest value on the way, so that no expression takes long."""


def calculate(expression: str) -> str:
    """Compute an arithmetic expression of numbers, + - * / // % and brackets.

    Args:
        expression: what to compute, as 3 * (4 + 5)
    """
    plain = expression.replace(",", "").replace("$", "").replace("×", "*").replace("÷", "/")
    percent = plain.replace("%", "/100") if plain.rstrip().endswith("%") else plain
    try:
        return written(_value(ast.parse(percent.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(f"{expression!r:.80} is no expression of arithmetic") from error
    except (ZeroDivisionError, OverflowError) as error:
        raise ToolError(f"{expression!r:.80} has no value ({error})") from error


def _value(node: ast.expr) -> float:
    value: float
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value  # type: ignore[assignment]
    elif isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        value = BINARY[type(node.op)](_value(node.left), _value(node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_value(node.operand)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
        value = _value(node.operand)
    else:
        raise ValueError(ast.dump(node))
    if not math.isfinite(value) or abs(value) > MOST:
        raise OverflowError(f"more than {MOST:g}")
    return value


def written(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.10g}"


@dataclass(frozen=True)
class CalculatorTools(Tools):
    """The tool `calculator`, which a model calls as GSM8K's solutions have it, in the middle of its
    text: `48/2 = <<48/2=` is answered by `24>>`.

    Prompts show it by solved examples; no words about tools are put into them.
    """

    tools: Sequence[Any] = field(default=(), init=False)
    format: str | ToolFormat = "calculator"
    calls_per_branch: PositiveInt = 32

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", (Tool.of(calculate).called("calculator"),))
        super().__post_init__()
