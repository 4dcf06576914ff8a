"""Whether a question that stands by itself asks for a number."""

from __future__ import annotations

import re

NUMBER = r"\(*-?\.?\d[\d.,]*\)*"
ASKS_FOR_NUMBER = re.compile(
    rf"""
    \bhow\s+(?:many|much|old|far|tall|high|heavy|fast|big|large|deep|wide|often)\b
    | \b(?:what|which)\s+(?:number|percentage|percent|fraction|share|age|year)\b
    | \b(?:calculate|compute)\b[^a-z]*\d
    | {NUMBER}\s*[+*/×÷^=]\s*{NUMBER}  # 17 * 23
    | {NUMBER}\s+[-−]\s+{NUMBER}  # but not 2018-2019
    | {NUMBER},?\s+or\s+{NUMBER}  # which is larger, 9.9 or 9.11?
    """,
    re.IGNORECASE | re.VERBOSE,
)


def question_kind(question: str) -> str:
    """The kind of answer that a question asks for: "number" where it says "how many" or the like,
    or has numbers to compute with or to choose from; else "text"."""
    return "number" if ASKS_FOR_NUMBER.search(question) else "text"
