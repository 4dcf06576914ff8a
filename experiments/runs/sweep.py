"""What a sweep's command line means, and what becomes of its jobs."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from threading import Event, Thread
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from experiments.cli.labels import label, labels, typed_settings
from experiments.cli.output import say
from experiments.cli.temporary import temporary_errors, temporary_folder
from experiments.runs.overrides import read
from ttc.errors import InvalidInput, number_of

NOTE = "job.json"
"""The file of a run's folder that says which job of a sweep it was."""
PRESETS = "experiment"
"""The group whose choices set others."""
LOOK_S, RECORDED_S = 1.0, 30.0
"""How often it is looked for jobs that have begun or ended, and told how much is recorded."""


def sweeps(arguments: Sequence[str]) -> bool:
    return bool({"-m", "--multirun"} & set(arguments))


def for_each_job(arguments: Sequence[str]) -> list[str]:
    """The words of a sweep's command line, in which the settings of a swept group are given to each
    job alone.

    Hydra applies what is not swept to the configuration without any of the swept choices first,
    where the setting of a swept search need not exist: `search=greedy,best_of_n
    search.max_tokens=40`. Written as a sweep over one value, `search.max_tokens=choice(40)`, it
    reaches the jobs alone. Raises InvalidInput for one run.name of several runs.
    """
    overrides = [read(word) for word in arguments]
    swept = [o.key_or_group for o in overrides if o is not None and o.is_sweep_override()]
    groups = {_group(key) for key in swept}
    words = []
    for word, override in zip(arguments, overrides, strict=True):
        if override is not None:
            _check_name(override, swept)
            group = _group(override.key_or_group)
            if group not in ("run", "hydra") and groups & {group, PRESETS}:
                word = _one_value(override)
        words.append(word)
    return words


def _check_name(override: Override, swept: Sequence[str]) -> None:
    others = [key for key in swept if key not in ("run.name", "run.shard")]
    if override.key_or_group != "run.name" or override.is_sweep_override() or not others:
        return
    if "${" not in (name := str(override.value())):
        raise InvalidInput(
            f"run.name={name} is the folder of one run, and the jobs of this sweep differ in "
            f"{others[0]}; leave it out, as each job has a name of its own, and give the "
            f"folder of all of them: run.output_dir=outputs/{name}"
        )


def job_title(arguments: Sequence[str], number: int, overrides: Sequence[str]) -> str:
    """What a job of a sweep is called while it runs, as `job 3 of 24: n=4 temperature=0.6`.

    arguments: the words of the sweep's command line. number: the job's, from 0. overrides: the
    job's own.
    """
    swept = [o for word in arguments if (o := read(word)) is not None and o.is_sweep_override()]
    counts = {o.key_or_group.replace("/", "."): _values(o) for o in swept}
    by_hydra = not any("hydra/sweeper" in word or "hydra.sweeper" in word for word in arguments)
    finite = by_hydra and None not in counts.values()
    total = f" of {prod(filter(None, counts.values()))}" if finite else ""
    keys = [key for key, count in counts.items() if count != 1]
    return f"job {number + 1}{total}: {label(typed_settings(overrides), keys)}"


def _values(override: Override) -> int | None:
    try:
        return sum(1 for _ in override.sweep_string_iterator())
    except HydraException:
        return None


def _group(key: str) -> str:
    return key.split(".")[0].split("/")[0]


def _one_value(override: Override) -> str:
    """The override as a sweep over its one value, unless Hydra would change the value."""
    text = str(override.input_line)
    if override.is_sweep_override() or override.is_delete():
        return text
    key = override.get_key_element()
    try:
        one = f"{key}=choice({override.get_value_element_as_str()})"
        (put,) = OverridesParser.create().parse_override(one).sweep_string_iterator()
        kept = OverridesParser.create().parse_override(f"{key}={put}").value() == override.value()
    except HydraException:
        return text
    return one if kept else text


def _own_log() -> str | None:
    """Where the lines of this process go, where submitit has started it."""
    if (submitit := sys.modules.get("submitit")) is None:
        return None
    here = submitit.JobEnvironment()
    return str(here.paths.stderr) if here.activated() else None


def note_job(folder: Path, sweep: str, number: int, overrides: Sequence[str]) -> None:
    """Keep in a run's folder which job of which sweep it was, the first of several."""
    note = {"sweep": sweep, "number": number, "overrides": list(overrides)}
    if any(before["sweep"] == sweep for before in _notes([folder])):
        return
    (folder / NOTE).write_text(json.dumps(note) + "\n", encoding="utf-8")


def in_order_of_sweep(folders: Sequence[Path]) -> list[Path]:
    """Folders of one sweep in the order of its jobs, others as they are."""
    numbers = [note["number"] for note in _notes(folders)] or range(len(folders))
    return [folders[i] for i in sorted(range(len(folders)), key=numbers.__getitem__)]


def typed_names(folders: Sequence[Path]) -> list[str] | None:
    """What a sweep calls its jobs, seeds left aside; None where these are not of one, or not all
    told apart."""
    names = row_labels([note["overrides"] for note in _notes(folders)])
    return names if names and all(names) and len(set(names)) == len(names) else None


def _notes(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The notes of folders that are all of one sweep, else none."""
    try:
        notes = [json.loads((folder / NOTE).read_text(encoding="utf-8")) for folder in folders]
        whole = all(
            type(note["number"]) is int and all(isinstance(o, str) for o in note["overrides"])
            for note in notes
        )
        return notes if whole and len({str(note["sweep"]) for note in notes}) == 1 else []
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return []


def row_labels(jobs: Sequence[Sequence[str]]) -> list[str]:
    """What differs between the jobs of a sweep, their seeds left aside. jobs: their overrides."""
    typed = [typed_settings(overrides) for overrides in jobs]
    for settings in typed:
        settings.pop("run.seed", None)
    return labels(typed)


@dataclass(frozen=True)
class JobOutcome:
    """overrides: what was typed for the job. result: its summary, or why it failed. folder: of a
    whole run, None for a shard and for a job that failed."""

    overrides: list[str]
    result: dict[str, Any] | str
    folder: str | None

    @property
    def failed(self) -> bool:
        return isinstance(self.result, str) or self.result["failures"] == self.result["problems"]


def each_run(jobs: Sequence[JobOutcome]) -> tuple[list[JobOutcome], list[str]]:
    """The jobs whose run no earlier job had, and a line about the others where there are some."""
    places = [job.folder or id(job) for job in jobs]
    runs = [job for i, job in enumerate(jobs) if places.index(places[i]) == i]
    left_out = f"{len(jobs) - len(runs)} of {len(jobs)} jobs have the run of an earlier one"
    why = "as where only a verifier differs that the search does not use"
    return runs, [f"left out: {left_out}, {why}"] * (len(runs) < len(jobs))


@dataclass(frozen=True)
class Outcomes:
    """What became of the jobs, kept in files, as a launcher may run them in other processes."""

    place: Path

    @classmethod
    @contextmanager
    def kept(cls, arguments: Sequence[str]) -> Iterator[Outcomes]:
        """Kept as long as needed; in this folder for a launcher, as machines do not share /tmp."""
        elsewhere = any(word.lstrip("+").startswith("hydra/launcher=") for word in arguments)
        with temporary_folder(".ttc-sweep-", Path.cwd() if elsewhere else None) as place:
            yield cls(place)

    def begin(self, number: int, folder: Path, title: str = "") -> None:
        """A job is about to write to this folder. title: what it is called."""
        note = {"folder": str(folder), "title": title, "log": _own_log()}
        self._write(f"{number:06}.begun", note)

    def recorded(self) -> str:
        """How many problems the jobs that have begun have recorded, and where; "" for none."""
        count = 0
        where = set[str]()
        for begun in self.place.glob("*.begun"):
            file = Path(_read(begun)["folder"]) / "records.jsonl"
            if lines := file.read_bytes().count(b"\n") if file.exists() else 0:
                count += lines
                where.add(str(file.parent.parent))
        return f"{number_of(count, 'problem')} in {', '.join(sorted(where))}" if count else ""

    def add(self, number: int, outcome: JobOutcome) -> None:
        self._write(f"{number:06}.json", asdict(outcome))

    def _write(self, name: str, value: Any) -> None:
        """Whole or not at all, as another process may look at any time."""
        new = self.place / f"{name}.new"
        with temporary_errors(self.place):
            new.write_text(json.dumps(value), encoding="utf-8")
            new.replace(self.place / name)

    def news(self, seen: set[str]) -> Iterator[str]:
        """A line for each job that has begun or ended and is not among `seen` yet."""
        for file in sorted(self.place.glob("*.begun")):
            note = _read(file)
            if file.name not in seen:
                seen.add(file.name)
                yield f"{note['title']} has begun, its log: {note['log'] or 'unknown'}"
            ended = file.with_suffix(".json")
            if ended.name not in seen and ended.exists():
                seen.add(ended.name)
                result = _read(ended)["result"]
                how = f"has failed: {result}" if isinstance(result, str) else "is done"
                yield f"{note['title'].partition(':')[0]} {how}"

    @contextmanager
    def watched(self, arguments: Sequence[str]) -> Iterator[None]:
        """Tell on the screen how far jobs are whose own lines go into logs, as submitit's do."""
        if not any(re.match(r"\+*hydra/launcher=submitit", word) for word in arguments):
            yield
            return
        over = Event()
        watching = Thread(target=self._watch, args=(over,), daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _watch(self, over: Event) -> None:
        seen = set[str]()
        last, since = "", time.monotonic()
        while True:
            ended = over.wait(LOOK_S)
            for line in self.news(seen):
                say(line)
            if ended:
                return
            if time.monotonic() - since > RECORDED_S and (done := self.recorded()) != last:
                say(f"recorded so far: {done}")
                last, since = done, time.monotonic()

    def all(self) -> list[JobOutcome]:
        """In the order of the jobs."""
        return [JobOutcome(**_read(file)) for file in sorted(self.place.glob("*.json"))]


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))
