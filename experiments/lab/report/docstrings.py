"""Tables of the searches and of the verifiers, made from their docstrings."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from experiments.cli.described import described, first_sentence
from experiments.cli.settings import DatasetConfig, FieldNames, ModelConfig
from experiments.lab.report.searches import FAMILIES
from experiments.runs.schema import PLACEMENTS, POLICIES, RATERS, SEARCHES
from search.base import StepwiseSearch
from search.budget import LIMITS, Budget
from ttc.checks import allowed, option_hints
from ttc.lazy import WHEN
from ttc.remote.endpoint import Endpoint
from ttc.sampling import Sampling
from ttc.tools.base import Tools

OF_PROMPTS = (
    *("instruction", "raw", "system", "chat", "chat_options", "keep_generated", "examples"),
    *("shots", "shots_path", "shots_split", "shots_seed", "end", "pad_chars"),
)
"""The settings of a data set that make prompts."""


def searches() -> str:
    """A row for each search, in the order of docs/searches.md."""
    known = [name for members in FAMILIES.values() for name in members]
    rows = [
        (f"`{name}`", first_sentence(SEARCHES[name]), *labelled(SEARCHES[name], "Tokens", WHEN))
        for name in dict.fromkeys([*known, *SEARCHES])
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


def policies() -> str:
    """A row for each policy of the memory that is named, not chosen."""
    rows = [
        (f"`{name}`", first_sentence(policy), *labelled(policy, WHEN))
        for name, policy in POLICIES.items()
        if name != "auto"
    ]
    return table(("`memory=`", "what it does", "use it where"), rows)


def memory() -> str:
    return options("memory.", {name: POLICIES[name] for name in sorted({*POLICIES} - {"auto"})})


def auto() -> str:
    return options("memory.", {"auto": POLICIES["auto"]})


def placement() -> str:
    return options("placement.", PLACEMENTS)


def backend() -> str:
    return options("backend.", {"openai": Endpoint})


def model() -> str:
    return options("model.", {"hf": ModelConfig})


def dataset() -> str:
    names = {f.name for f in fields(DatasetConfig)} - {*OF_PROMPTS, "fields"}
    own = options("dataset.", {"dataset": DatasetConfig}, names)
    return f"{own}\n\n{options('dataset.fields.', {'fields': FieldNames})}"


def prompts() -> str:
    return options("dataset.", {"dataset": DatasetConfig}, OF_PROMPTS)


def tools() -> str:
    names = ("choice", "parallel", "calls_per_branch", "time_s", "answer_tokens", "strict")
    return options("", {"tools": Tools}, names)


def thinking() -> str:
    names = {f.name for f in fields(StepwiseSearch)} - {f.name for f in fields(Sampling)}
    return options("", {"search": StepwiseSearch}, names)


def options(prefix: str, kinds: Mapping[str, type], names: Collection[str] = ()) -> str:
    """A row for each option of these classes, by their choices: what it means, its default and its
    limit. names: of those to show, () for all."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for choice, kind in kinds.items():
        words = described(kind)
        for f in fields(kind):
            if f.init and (not names or f.name in names):
                found.setdefault(f.name, {}).setdefault(words[f.name], {})[choice] = f.default
    rows = []
    for name, meanings in found.items():
        for meaning, defaults in meanings.items():
            usual, _ = Counter(defaults.values()).most_common(1)[0]
            told = [_default(usual)]
            told += [f"`{c}` {_default(own)}" for c, own in defaults.items() if own != usual]
            limit = allowed(option_hints(kinds[next(iter(defaults))])[name])
            where = [_among(defaults, kinds)] if len(kinds) > 1 else []
            rows.append((f"`{prefix}{name}`", *where, meaning, ", ".join(told), limit))
    heads = ["setting", *(["of"] if len(kinds) > 1 else []), "meaning", "default", "limit"]
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return table(heads, rows)


def _among(some: Collection[str], every: Collection[str]) -> str:
    """Names of choices, or those that are missing where these are fewer."""
    missing = [f"`{name}`" for name in every if name not in some]
    if not missing:
        return "all"
    if len(missing) < len(some):
        return f"all but {', '.join(missing)}"
    return ", ".join(f"`{name}`" for name in some)


def _default(value: Any) -> str:
    if value is MISSING:
        return ""
    if value in (None, ""):
        return "none"
    if value == "???" or f"{value}".startswith("${"):  # what has to be given, or follows others
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value}`" if isinstance(value, str) else f"{value:,}".removesuffix(".0")


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
