"""What a leaderboard's file asks for, as the cells to run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from experiments.cli.choices import choices
from experiments.cli.labels import checked_labels, labels, typed_settings
from experiments.cli.removed import removal
from experiments.eval.cells import Cell
from experiments.runs.overrides import as_override
from experiments.runs.reading import refuse_bombs
from experiments.runs.records import check_name
from experiments.runs.run_name import overrides_suffix
from ttc.checks import check_choice, check_once, use_one_of
from ttc.errors import InvalidInput, refuse, refusing
from ttc.text.encodable import encodable

GROUPS = {"models": "model", "datasets": "dataset", "searches": "search"}
"""The lists of the file whose entries can be a choice of one of Hydra's groups."""
KEYS = ("name", *GROUPS, "budgets", "seeds", "settings", "output_dir")
OWN = ("run.name", "run.seed", "run.output_dir")
"""What the leaderboard sets itself."""


@dataclass(frozen=True)
class Leaderboard:
    """A leaderboard: its name, the folder of its runs, and its cells, those of one model in a
    row."""

    name: str
    folder: Path
    cells: list[Cell]


@dataclass(frozen=True)
class ListEntry:
    """One entry of a list. label: its name in folders. overrides: what it sets. title: its name
    beside the others of its list; None for what they differ in."""

    label: str
    overrides: list[str]
    title: str | None = None


def read_plan(file: Path) -> Leaderboard:
    """Raises InvalidInput for a file that cannot be read as a leaderboard."""
    with refusing(
        (OSError, UnicodeDecodeError),
        f"{file} cannot be read ({{error}}); give a YAML file of what to run, as --help shows",
    ):
        text = file.read_text(encoding="utf-8")
    # also a date or a number that is none
    with refusing((yaml.YAMLError, ValueError), f"{file} is not YAML: {{error}}", but=InvalidInput):
        refuse_bombs(file, text)
        plan = yaml.safe_load(text)
    refuse(
        {
            f"{file} holds half of a pair that stands for one sign (a lone surrogate); write the "
            "sign itself": encodable(plan) != plan,
            f"{file} must be a mapping with the keys {', '.join(KEYS)}": (
                not isinstance(plan, dict) or not all(isinstance(key, str) for key in plan)
            ),
        }
    )
    for key in plan:
        check_choice(key, KEYS, f"{file}: {key!r} is unknown")
    name = check_name(str(plan.get("name") or file.stem))
    folder = Path(str(plan.get("output_dir") or "outputs")) / name
    axes = [
        [_entry(value, group, key) for value in _list(plan, key)] for key, group in GROUPS.items()
    ]
    budgets = _list(plan, "budgets") if plan.get("budgets") is not None else [{}]
    axes.append([_budget(value) for value in budgets])
    axes = [list(_titled(entries)) for entries in axes]
    seeds = _seeds(plan.get("seeds", [0]))
    common = _settings(plan.get("settings") or {}, "settings")
    cells = [_cell(row, seed, common, folder) for row in product(*axes) for seed in seeds]
    way_out = "give their entries a name each, as {name: ..., ...}"
    check_once((cell.name for cell in cells), "cells", way_out)
    return Leaderboard(name, folder, cells)


def with_labels(plan: Leaderboard, names: Sequence[str]) -> Leaderboard:
    """The plan whose rows are called so, in the order of the file.

    Raises InvalidInput where the names do not fit the rows.
    """
    titles = list(dict.fromkeys(cell.title for cell in plan.cells))
    called = dict(zip(titles, checked_labels(names, titles), strict=True))
    return replace(plan, cells=[replace(cell, title=called[cell.title]) for cell in plan.cells])


def _cell(entries: Sequence[ListEntry], seed: int, common: Sequence[str], folder: Path) -> Cell:
    named = dict(
        zip(
            ("model", "dataset", "search", "budget"),
            (entry.label for entry in entries),
            strict=True,
        )
    )
    name = check_name("-".join([*filter(None, named.values()), f"seed{seed}"]))
    overrides = [override for entry in entries for override in entry.overrides]
    model, _, search, budget = (entry.title or "" for entry in entries)
    title = " ".join(filter(None, (model, search, budget))) or entries[2].label
    place = [
        f"run.name={as_override(name)}",
        f"run.seed={seed}",
        f"run.output_dir={as_override(str(folder))}",
    ]
    return Cell(name, named, seed, [*common, *overrides, *place], title)


def _titled(entries: Sequence[ListEntry]) -> Iterator[ListEntry]:
    """The entries of a list with titles, which one entry does not need."""
    typed = [typed_settings(entry.overrides) for entry in entries]
    titles = [entry.title or label for entry, label in zip(entries, labels(typed), strict=True)]
    for entry, title in zip(entries, titles, strict=True):
        apart = title if title and titles.count(title) == 1 else entry.label
        yield replace(entry, title="" if len(entries) == 1 else apart)


def _list(plan: Mapping[str, Any], key: str) -> list[Any]:
    value = plan.get(key)
    if not isinstance(value, list) or not value:
        raise InvalidInput(f"{key} is {value!r}; give a list of at least one entry")
    return value


def _seeds(value: Any) -> list[int]:
    if not isinstance(value, list) or not value or not all(type(seed) is int for seed in value):
        raise InvalidInput(f"seeds is {value!r}; give a list of whole numbers")
    return value


def _entry(value: Any, group: str, key: str) -> ListEntry:
    """A choice of the group, a model's name, or a mapping of settings, which may hold a `name`."""
    if isinstance(value, str):
        if value in choices(group):
            return ListEntry(value, [f"{group}={value}"])
        if group == "model":
            chosen = ["model=hf", f"model.name={as_override(value)}"]
            return ListEntry(_label(value), chosen, value.rpartition("/")[2])
        unknown = f"{value!r} is unknown; {use_one_of(value, choices(group))}, or a mapping of "
        raise InvalidInput(f"{key}: {removal(group, value) or f'{unknown}settings'}")
    if not isinstance(value, dict):
        raise InvalidInput(f"{key}: {value!r} is neither a name nor a mapping of settings")
    return _mapping(value, key, str(value.get(group, "")))


def _budget(value: Any) -> ListEntry:
    if type(value) is int:
        return ListEntry(f"{value}tokens", [f"run.max_tokens={value}"])
    if not isinstance(value, dict):
        raise InvalidInput(
            f"budgets: {value!r} is neither a number of tokens nor a mapping of settings"
        )
    return _mapping(value, "budgets", "")


def _mapping(value: Mapping[str, Any], key: str, head: str) -> ListEntry:
    overrides = _settings({k: v for k, v in value.items() if k != "name"}, key)
    rest = overrides_suffix(
        [o for o in overrides if o.partition("=")[0] not in GROUPS.values()], ()
    )
    title = str(value["name"]) if value.get("name") else None
    return ListEntry(_label(title or (head + rest).strip("-")), overrides, title)


def _settings(value: Any, key: str) -> list[str]:
    named = isinstance(value, dict) and all(isinstance(name, str) for name in value)
    reserved = ", ".join(name for name in OWN if named and name in value)
    refuse(
        {
            f"{key}: {value!r} is no mapping of settings, as {{search.n: 4}}": not named,
            f"{key}: {reserved} is set by the leaderboard itself; use name, seeds and output_dir": (
                reserved
            ),
        }
    )
    return [
        f"{name}={item}" if "." not in name else f"{name}={as_override(item)}"
        for name, item in value.items()
    ]


def _label(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", text)
