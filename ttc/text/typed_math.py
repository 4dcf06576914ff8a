"""Signs of mathematics in Unicode (√, π, x², ≤), in LaTeX."""

from __future__ import annotations

import re
import unicodedata

from ttc.text.numbers import hyphened, plain_numbers
from ttc.text.tables import by_word, table


def _letter(sign: str) -> str:
    """The command of a Greek letter. Unicode writes lamda."""
    name = unicodedata.name(sign).rpartition(" ")[2].replace("LAMDA", "LAMBDA")
    return "\\" + (name.lower() if sign.islower() else name.capitalize())


GREEK = {sign: _letter(sign) for sign in "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΣΥΦΨΩ"}
_COMMANDS = GREEK | by_word(table("formulas")["signs"])
_SIGNS = str.maketrans({sign: f"{name} " for sign, name in _COMMANDS.items()})
_INDEX = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙₓ]+")
_ROOT = re.compile(r"(?:√|(?<![\\A-Za-z])sqrt) ?(?:(\d+|[A-Za-z](?![A-Za-z]))|\(([^()]{1,100})\))")


def with_commands(formula: str) -> str:
    """A formula with LaTeX's commands in the place of Unicode's signs."""
    if formula.isascii():
        return formula
    indexed = _INDEX.sub(lambda index: "_{" + _plain(index[0]) + "}", plain_numbers(formula))
    signed = hyphened(indexed).translate(_SIGNS)
    return signed if signed.isascii() else unicodedata.normalize("NFKC", signed)


def in_latex(formula: str) -> str:
    """A formula as math-verify reads it: with LaTeX in the place of typed roots too."""
    rooted = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", formula)
    return with_commands(rooted)


def _plain(signs: str) -> str:
    return hyphened(unicodedata.normalize("NFKC", signs))
