"""The folders to compare: read, put together where only the seed differs, and refused where they do not compare."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.runs.fingerprint import UNUSABLE, data_fingerprint
from experiments.runs.plain import as_dict
from experiments.runs.records import MAY_CHANGE, flat, read_records
from experiments.runs.summary import is_right
from ttc.errors import InvalidInput
from ttc.protocols import Problem

NEEDED = ("id", "correct", "error", "branches", "usage")
"""What every version has written into a record."""
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


@dataclass(frozen=True)
class Run:
    """One folder. config: its settings, as dotted keys. made_from: its fingerprint.json, {} in old runs."""

    folder: Path
    config: dict[str, Any]
    verifier: dict[str, Any]
    records: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    made_from: dict[str, dict[str, str]] = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Raises InvalidInput for a folder that is not that of a run, and for records of another kind."""
        file, settings = folder / "records.jsonl", folder / "config.yaml"
        if not file.is_file() or not settings.is_file():
            what = (
                "is no folder"
                if not folder.is_dir()
                else f"holds no {file.name if settings.is_file() else settings.name}"
            )
            raise InvalidInput(f"{folder} {what}; give folders of runs, as outputs/NAME, with a problem done")
        try:
            tree = as_dict(OmegaConf.load(settings))
            config = flat(tree)
        except (OmegaConfBaseException, ValueError, AttributeError) as error:
            raise InvalidInput(f"{settings} cannot be read ({str(error).splitlines()[0]}); restore it") from error
        records = read_records(file)[0]
        if not records:
            raise InvalidInput(f"{file} holds no problem yet; wait for the run, or leave the folder out")
        for number, record in enumerate(records.values(), 1):
            if missing := [name for name in NEEDED if name not in record]:
                raise InvalidInput(
                    f"{file}, record {number} has no {' and no '.join(missing)}: another version or program wrote it, "
                    "so it cannot be compared; run again under another run.name"
                )
        verifier = tree.get("verifier") or {}
        return cls(
            folder, config, verifier, records, _json(folder / "summary.json"), _json(folder / "fingerprint.json")
        )

    @cached_property
    def problems(self) -> dict[str, str | None]:
        """A mark of each problem's question and gold answer; None where the records do not tell."""
        known = self.made_from.get("data", {})
        return {name: known.get(name) or self._mark(name) for name in self.records}

    def _mark(self, name: str) -> str | None:
        question, gold = self.records[name].get("question"), self.records[name].get("gold")
        if question is None:
            return UNUSABLE if self.records[name]["error"] and gold is None else None
        return data_fingerprint([Problem(question, name, gold)], [])[name]

    @property
    def left(self) -> list[str]:
        """The problems that the run has not come to, as it was stopped or goes on."""
        return [name for name in self.made_from.get("data", {}) if name not in self.records]


@dataclass(frozen=True)
class Row:
    """A configuration with its runs, which differ in the seed alone."""

    name: str
    runs: list[Run]

    @cached_property
    def values(self) -> dict[str, float]:
        """The share of a problem's runs that are right."""
        return self.each(is_right)

    def each(self, figure: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        """A figure of each problem, the mean over its runs."""
        found: dict[str, list[float]] = {}
        for run in self.runs:
            for name, record in run.records.items():
                found.setdefault(name, []).append(figure(record))
        return {name: sum(figures) / len(figures) for name, figures in found.items()}

    def mean(self, figure: Callable[[dict[str, Any]], float]) -> float:
        """The mean of a figure over the problems: each counts once, in however many runs it is."""
        figures = self.each(figure).values()
        return sum(figures) / len(figures)

    def sources(self, names: Sequence[str]) -> list[str] | None:
        """The source of each problem, itself where it has none; None where no problem has one."""
        known = {
            name: record["source"] for run in self.runs for name, record in run.records.items() if record.get("source")
        }
        return [f"source {known[name]}" if name in known else f"problem {name}" for name in names] if known else None


def load_rows(folders: Sequence[Path]) -> list[Row]:
    """The rows in the order of their first folders. Raises InvalidInput for folders that repeat one another."""
    runs: list[Run] = []
    for folder in folders:
        if any(folder.resolve() == run.folder.resolve() for run in runs):
            raise InvalidInput(f"{folder} is given twice; name each folder once")
        runs.append(Run.load(folder))
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_configuration(run), []).append(run)
    for group in groups.values():
        ordered = sorted(group, key=lambda run: int(run.config.get("run.seed", 0)))
        for seed, same in groupby(ordered, key=lambda run: run.config.get("run.seed", 0)):
            if len(twice := list(same)) > 1:
                raise InvalidInput(
                    f"{twice[0].folder} and {twice[1].folder} hold the same configuration with the same "
                    f"run.seed={seed}; leave one out"
                )
    return [Row(name, group) for name, group in zip(_names(list(groups.values())), groups.values(), strict=True)]


def check_comparable(rows: Sequence[Row], different_problems: bool = False, different_prompts: bool = False) -> None:
    """Raise InvalidInput, which names the difference, for runs on other problems or with other prompts than the first.

    Prompts are compared as texts between runs of one model. Models have chat templates of their own, so between two of
    them the settings of the prompt are compared.
    """
    first, *others = [run for row in rows for run in row.runs]
    for run in others:
        if not different_problems and (lines := list(_other_problems(first, run))):
            raise InvalidInput(
                f"{first.folder} and {run.folder} are not on the same problems:\n"
                + "\n".join(f"  {line}" for line in lines)
                + "\n--different-problems compares them all the same, where they can be paired on the problems of both"
            )
        if not different_prompts and (lines := list(_other_prompts(first, run))):
            raise InvalidInput(
                f"{first.folder} and {run.folder} do not ask alike:\n"
                + "\n".join(f"  {line}" for line in lines)
                + "\n--different-prompts compares them all the same"
            )


def differing_settings(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """For each row, the settings that are not the same in all rows."""
    configs = [{key: value for key, value in row.runs[0].config.items() if key not in OF_A_SEED} for row in rows]
    keys = sorted({key for config in configs for key in config})
    apart = [key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)]
    return {row.name: {k: config[k] for k in apart if k in config} for row, config in zip(rows, configs, strict=True)}


def prompt_settings(run: Run) -> dict[str, Any]:
    """The settings that make the prompts."""
    return {
        key: value
        for key, value in run.config.items()
        if key.startswith("dataset.") and key.split(".")[1] in OF_THE_PROMPT
    }


def _json(file: Path) -> dict[str, Any]:
    """What an optional file of a run holds; nothing where there is none."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{file} is damaged ({error}); restore or delete it") from error
    return found if isinstance(found, dict) else {}


def _configuration(run: Run) -> str:
    kept = {key: value for key, value in run.config.items() if key not in OF_A_SEED}
    parts = [run.made_from.get(part) for part in ("model", "verifier", "code")]
    return json.dumps([kept, *parts], sort_keys=True, default=str)


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The folders' names, without the seed where a row has several; with their paths where names repeat."""
    short = [
        group[0].folder.name
        if len(group) == 1
        else re.sub(r"-?seed\d+", "", group[0].folder.name) or group[0].folder.name
        for group in groups
    ]
    return [name if short.count(name) == 1 else str(group[0].folder) for name, group in zip(short, groups, strict=True)]


def _other_problems(a: Run, b: Run) -> Iterator[str]:
    for run, other in ((a, b), (b, a)):
        if alone := [name for name in run.problems if name not in other.problems]:
            yield f"{_some(alone)} in {run.folder} alone"
    both = [name for name in a.problems if name in b.problems]
    if changed := [n for n in both if None not in (a.problems[n], b.problems[n]) and a.problems[n] != b.problems[n]]:
        yield f"the question or gold answer of {_some(changed)} differs"


def _other_prompts(a: Run, b: Run) -> Iterator[str]:
    for setting in OF_THE_GRADES:
        one, other = a.config.get(setting), b.config.get(setting)
        if one != other:
            yield f"{setting}, by which answers are graded: {one!r} -> {other!r}"
        elif one and (codes := [run.made_from.get("code", {}).get(one) for run in (a, b)])[0] != codes[1]:
            yield f"the code of {setting}={one}, by which answers are graded"
    same_model = a.config.get("model.name") == b.config.get("model.name")
    asked = [{name: text for name, record in run.records.items() if (text := record.get("prompt"))} for run in (a, b)]
    both = [name for name in asked[0] if name in asked[1]]
    if same_model and both:
        if changed := [name for name in both if asked[0][name] != asked[1][name]]:
            yield f"the prompt of {_some(changed)}"
        else:
            return
    settings = [prompt_settings(run) for run in (a, b)]
    for key in sorted(settings[0].keys() | settings[1].keys()):
        if settings[0].get(key) != settings[1].get(key):
            yield f"{key}: {settings[0].get(key)!r} -> {settings[1].get(key)!r}"
    shown = [run.made_from.get("examples", {}) for run in (a, b)]
    if shown[0] != shown[1] and a.made_from and b.made_from:
        yield "the solved examples"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} problem{'s' if len(names) > 1 else ''} ({', '.join(names[:SHOWN])}{more})"
