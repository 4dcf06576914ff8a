"""Formulas as people type them (2√3, x², sqrt(3)), in LaTeX, which math-verify reads."""

from __future__ import annotations

import re

from ttc.text.numbers import hyphened

_ROOT = re.compile(r"(?:√|(?<![\\A-Za-z])sqrt) ?(?:(\d+|[A-Za-z](?![A-Za-z]))|\(([^()]{1,100})\))")
_SIGNS = str.maketrans({"²": "^{2}", "³": "^{3}", "·": r"\cdot ", "∞": r"\infty "})


def in_latex(formula: str) -> str:
    """A formula with LaTeX in the place of roots, powers, points and infinities; minus signs become
    hyphens. What is LaTeX already stays as it is."""
    rooted = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", hyphened(formula))
    return rooted.translate(_SIGNS)
