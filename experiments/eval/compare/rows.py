"""Runs as the rows of a comparison: put together where only the seed differs, refused where they do
not compare."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import escape, glob, has_magic
from os.path import commonprefix
from pathlib import Path
from typing import Any

from experiments.cli.labels import checked_labels, labels
from experiments.runs.config_values import changed_values, listed
from experiments.runs.finished import FinishedRun
from experiments.runs.records import MAY_CHANGE
from experiments.runs.run_name import data_label
from experiments.runs.stats import Estimate, accuracy
from experiments.runs.summary import is_right, mean, means, question_of
from experiments.runs.sweep import in_order_of_sweep, typed_names
from ttc.errors import InvalidInput, number_of

OF_A_SEED = ("run.seed", "run.name", *MAY_CHANGE)
"""Settings in which the runs of one row may differ."""
OF_THE_PROMPT = (
    "instruction",
    "system",
    "chat",
    "raw",
    "chat_options",
    "keep_generated",
    "examples",
    "shots",
    "shots_split",
    "shots_seed",
)
OF_THE_GRADES = ("dataset.answer_kind", "dataset.extract", "dataset.grader")
SHOWN = 3
LONGEST_NAME = 24
"""Characters of a run's name that is kept as its label."""


@dataclass(frozen=True)
class ComparedRow:
    """A configuration with its runs, which differ in the seed alone."""

    name: str
    runs: list[FinishedRun]

    @property
    def configuration(self) -> str:
        return _configuration(self.runs[0])

    @cached_property
    def values(self) -> dict[str, float]:
        """The share of a question's runs, and of its orders in them, that are right."""
        return self.each(is_right)

    def each(self, figure: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        """A figure of each question, the mean over its runs and orders."""
        records = (record for run in self.runs for record in run.records.values())
        return means((question_of(record), figure(record)) for record in records)

    def mean(self, figure: Callable[[dict[str, Any]], float]) -> float:
        """The mean of a figure over the questions: each counts once, in however many runs and
        orders it is."""
        return mean(list(self.each(figure).values()))

    @property
    def estimate(self) -> Estimate:
        """The accuracy with its interval."""
        names = list(self.values)
        return accuracy([self.values[name] for name in names], self.sources(names))

    def sources(self, names: Sequence[str]) -> list[str] | None:
        """The source of each question, itself where it has none; None where none has one."""
        sources = {
            question_of(record): record["source"]
            for run in self.runs
            for record in run.records.values()
            if record.get("source")
        }
        if not sources:
            return None
        return [f"source {sources[n]}" if n in sources else f"problem {n}" for n in names]


def run_folders(places: Sequence[Path]) -> Iterator[Path]:
    """The folders of runs: each itself, those in a folder of runs, or those that a pattern matches.
    Raises InvalidInput for a pattern that matches no run."""
    for place in places:
        if place.exists():
            inside = [] if _is_run(place) else _runs_among(place.glob("*"))
            yield from in_order_of_sweep(inside) or [place]
        elif not has_magic(str(place)):
            yield place
        elif matching := _runs_among(map(Path, glob(str(place)))):
            yield from in_order_of_sweep(matching)
        else:
            raise InvalidInput(
                f"{place} matches no folder of a run; give folders of runs, as outputs/NAME"
            )


def short_place(folders: Sequence[Path]) -> list[Path]:
    """The shortest that `run_folders` reads as these: their folder, a pattern, or they
    themselves."""
    parent, names = folders[0].parent, [folder.name for folder in folders]
    start = commonprefix(names)  # noqa: RUF071
    end = commonprefix([name[::-1] for name in names])[::-1]  # noqa: RUF071
    for place in (parent, parent / f"{escape(start)}*{escape(end)}"):
        if set(run_folders([place])) == set(folders):
            return [place]
    return list(folders)


def load_rows(places: Sequence[Path], names: Sequence[str] | None = None) -> list[ComparedRow]:
    """The rows in the order of their first folders. places: as `run_folders` reads them. names:
    labels for the rows.

    Runs that are alike in the seed, too, are rows of their own. Raises InvalidInput for a folder
    that is given twice, and for labels that do not fit the rows.
    """
    runs: list[FinishedRun] = []
    for folder in run_folders(places):
        if any(folder.resolve() == run.folder.resolve() for run in runs):
            raise InvalidInput(f"{folder} is given twice; name each folder once")
        runs.append(FinishedRun.load(folder))
    groups: dict[tuple[str, int], list[FinishedRun]] = {}
    times = Counter[tuple[str, Any]]()
    for run in runs:
        configuration = _configuration(run)
        of_seed = configuration, run.config.get("run.seed")
        groups.setdefault((configuration, times[of_seed]), []).append(run)
        times[of_seed] += 1
    defaults = _names(list(groups.values()))
    titles = defaults if names is None else checked_labels(names, defaults)
    return [ComparedRow(name, group) for name, group in zip(titles, groups.values(), strict=True)]


def with_baseline(rows: Sequence[ComparedRow], name: str) -> list[ComparedRow]:
    """The rows, that of this label or folder first. Raises InvalidInput where there is none."""
    path = Path(name).resolve()
    for row in rows:
        folders = [run.folder for run in row.runs]
        if name == row.name or any(name == f.name or path == f.resolve() for f in folders):
            return [row, *(other for other in rows if other is not row)]
    choices = "\n".join(f"  {row.name}" for row in rows)
    raise InvalidInput(f"--baseline={name} is none of the rows; give one of these:\n{choices}")


def check_comparable(
    rows: Sequence[ComparedRow], different_problems: bool = False, different_prompts: bool = False
) -> None:
    """Raise InvalidInput, which names the difference, for runs on other problems or with other
    prompts than the first.

    Prompts are compared as texts between runs of one model, and by their settings between models,
    whose chat templates differ.
    """
    first, *others = [run for row in rows for run in row.runs]
    for run in others:
        both = f"{first.folder} and {run.folder}"
        if not different_problems and (lines := listed(_other_problems(first, run))):
            raise InvalidInput(
                f"{both} are not on the same problems:\n{lines}\n--different-problems compares "
                "them all the same, where they can be paired on the problems of both"
            )
        if not different_prompts and (lines := listed(_other_prompts(first, run))):
            raise InvalidInput(
                f"{both} do not ask alike:\n{lines}\n--different-prompts compares them all the same"
            )


def differing_settings(rows: Sequence[ComparedRow]) -> dict[str, dict[str, Any]]:
    configs = [_settings(row.runs[0]) for row in rows]
    first = configs[0]
    keys = sorted({key for config in configs for key in config})
    apart = [key for key in keys if any(c.get(key) != first.get(key) for c in configs)]
    return {
        row.name: {k: config[k] for k in apart if k in config}
        for row, config in zip(rows, configs, strict=True)
    }


def prompt_settings(run: FinishedRun) -> dict[str, Any]:
    return {
        key: value
        for key, value in run.config.items()
        if key.startswith("dataset.") and key.split(".")[1] in OF_THE_PROMPT
    }


def _configuration(run: FinishedRun) -> str:
    kept = _settings(run)
    parts = [run.made_from.get(name) for name in ("model", "verifier", "code")]
    return json.dumps([kept, *parts], sort_keys=True, default=str)


def _settings(run: FinishedRun) -> dict[str, Any]:
    kept = {key: value for key, value in run.config.items() if key not in OF_A_SEED}
    orders = run.config.get("dataset.orders") or 1  # further ones are other problems
    return kept | ({"dataset.orders": orders} if orders > 1 else {})


def _is_run(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("config.yaml", "records.jsonl"))


def _runs_among(folders: Iterable[Path]) -> list[Path]:
    def key(folder: Path) -> list[tuple[float, str]]:
        pieces = re.split(r"(\d+(?:\.\d+)?)", folder.name)
        return [
            (float(piece), "") if piece[:1].isdecimal() else (math.inf, piece) for piece in pieces
        ]

    return sorted(filter(_is_run, folders), key=key)


def _names(groups: Sequence[Sequence[FinishedRun]]) -> list[str]:
    """The names that were given to the runs where they are short, without the seed where a row has
    several. Else what tells the rows apart. With their paths where names repeat."""
    folders = [group[0].folder for group in groups]
    if (typed := typed_names(folders)) is not None:
        return typed
    names = []
    for group, label in zip(groups, labels([_settings(g[0]) for g in groups]), strict=True):
        name = group[0].folder.name
        if len(group) > 1:
            name = re.sub(r"-?seed\d+", "", name) or name
        usable = len(name) <= LONGEST_NAME and not _is_default_name(group[0])
        names.append(name if usable or not label else label)
    return [
        name if names.count(name) == 1 else str(folder)
        for name, folder in zip(names, folders, strict=True)
    ]


def _is_default_name(run: FinishedRun) -> bool:
    name, config = run.folder.name, run.config
    data = data_label(str(config.get("dataset.name")), config.get("dataset.path"))
    return name.startswith(f"{data}-") and f"-seed{config.get('run.seed')}" in name


def _other_problems(a: FinishedRun, b: FinishedRun) -> Iterator[str]:
    for run, other in ((a, b), (b, a)):
        if alone := [name for name in run.problems if name not in other.problems]:
            yield f"{_some(alone)} in {run.folder} alone"
    both = [name for name in a.problems if name in b.problems]
    if changed := [name for name in both if differ(a.problems[name], b.problems[name])]:
        yield f"the question or gold answer of {_some(changed)} differs"


def differ(a: str | None, b: str | None) -> bool:
    """Whether two marks of `FinishedRun.problems` are of different problems."""
    return None not in (a, b) and a != b


def _other_prompts(a: FinishedRun, b: FinishedRun) -> Iterator[str]:
    for setting in OF_THE_GRADES:
        one, other = a.config.get(setting), b.config.get(setting)
        codes = [run.made_from.get("code", {}).get(str(one)) for run in (a, b)]
        if one != other:
            yield f"{setting}, by which answers are graded: {one!r} -> {other!r}"
        elif codes[0] != codes[1]:
            yield f"the code of {setting}={one}, by which answers are graded"
    same_model = a.config.get("model.name") == b.config.get("model.name")
    prompts = [
        {name: text for name, record in run.records.items() if (text := record.get("prompt"))}
        for run in (a, b)
    ]
    both = [name for name in prompts[0] if name in prompts[1]]
    if same_model and both:
        if changed := [name for name in both if prompts[0][name] != prompts[1][name]]:
            yield f"the prompt of {_some(changed)}"
        else:
            return
    yield from changed_values(prompt_settings(a), prompt_settings(b))
    examples = [run.made_from.get("examples", {}) for run in (a, b)]
    if examples[0] != examples[1] and a.made_from and b.made_from:
        yield "the solved examples"


def _some(names: Sequence[str]) -> str:
    return f"{number_of(len(names), 'problem')} ({some_of(names)})"


def some_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
