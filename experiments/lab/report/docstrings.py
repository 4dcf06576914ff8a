"""Tables of the searches and of the verifiers, made from their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

from experiments.cli.described import described
from experiments.lab.report.searches import FAMILIES
from experiments.runs.schema import RATERS, SEARCHES
from search.budget import LIMITS, Budget

WHEN = "Use it where"


def searches() -> str:
    """A row for each search, in the order of docs/searches.md."""
    known = [name for members in FAMILIES.values() for name in members]
    rows = [
        (f"`{name}`", first_sentence(SEARCHES[name]), *labelled(SEARCHES[name], "Tokens", WHEN))
        for name in sorted(SEARCHES, key=known.index)
    ]
    return table(("search", "what it does", "generated tokens, at most", "use it where"), rows)


def verifiers() -> str:
    """A row for each verifier, by name."""
    rows = [
        (f"`{name}`", *labelled(verifier, "Rates", "Cost", WHEN))
        for name, verifier in sorted(RATERS.items())
    ]
    return table(("`verifier=`", "what it rates", "cost of a rating", "use it where"), rows)


def budgets() -> str:
    """A row for each limit of a problem's budget."""
    words = described(Budget)
    rows = [(f"`{name}`", words[name]) for name in LIMITS]
    return table(("limit", "what it means"), rows)


def first_sentence(described: type) -> str:
    paragraph = " ".join(documented(described).split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph, maxsplit=1)[0].removesuffix(".")


def labelled(described: type, *labels: str) -> list[str]:
    """What the docstring says after each label, up to the next one."""
    found = dict(
        re.findall(
            rf"^({'|'.join(labels)}): (.+?)\.(?=\n(?:{'|'.join(labels)}): |\Z)",
            documented(described),
            re.DOTALL | re.MULTILINE,
        )
    )
    missing = [label for label in labels if label not in found]
    if missing:
        raise ValueError(f"the docstring of {described.__name__} has no line {missing[0]!r}")
    return [" ".join(found[label].split()) for label in labels]


def documented(described: type) -> str:
    return inspect.cleandoc(described.__doc__ or "")


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
