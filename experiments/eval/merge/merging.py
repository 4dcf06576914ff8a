"""Shards put together by their problems' ids, once it is sure that they are the parts of one
run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.cli.output import show
from experiments.runs.config_values import changed_values, listed
from experiments.runs.fingerprint import UNUSABLE, differences
from experiments.runs.finished import FinishedRun
from experiments.runs.reading import check_whole, read_provenance
from experiments.runs.records import MAY_CHANGE, RunFolder
from experiments.runs.shards import Shard
from experiments.runs.summary import summary_of
from experiments.runs.summary_tables import table
from ttc.errors import InvalidInput, number_of, refuse

FREE = {*MAY_CHANGE, "run.name"} - {"dataset.limit", "dataset.size", "dataset.orders"}
"""Settings in which shards may differ; not those that say which problems there are."""


def merge(out: Path, folders: Sequence[Path] = ()) -> None:
    """Write `out` from these shards, or from all folders that are called as its shards are.

    Raises InvalidInput where shards are missing, unfinished or given twice, hold the same problem,
    or were made with other settings, data or weights.
    """
    runs = in_order([FinishedRun.load(folder) for folder in folders or _shards_of(out)])
    ids = problem_ids(runs)
    records: dict[str, Any] = {}
    inputs: dict[str, dict[str, str]] = {}
    for run in runs:
        records |= run.records
        for record in run.records.values():
            check_whole(run.folder, record)
        for kind, marks in run.made_from.items():
            inputs.setdefault(kind, {}).update(marks)
    config = OmegaConf.create(runs[0].settings)
    config.run.shard = None
    config.run.name = out.name
    config.run.output_dir = str(out.parent)
    with RunFolder(config) as folder:
        if folder.records:
            raise InvalidInput(
                f"{out} holds {number_of(len(folder.records), 'record')} already; give another "
                "folder, or delete it"
            )
        folder.check_inputs(inputs)
        folder.made_by(*(go for run in runs for go in read_provenance(run.folder)))
        ordered = [records[name] for name in ids]
        folder.append(*ordered)
        summary = summary_of(config, ordered, folder.goes)
        folder.write_summary(summary)
    show(table(out.name, summary, list(config.search)))
    show(f"\n{number_of(len(runs), 'shard')}: {out}")


def in_order(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs by their place among the shards. Raises InvalidInput unless they are all parts of
    one run."""
    count = 0
    by_index: dict[int, FinishedRun] = {}
    for run in runs:
        if (text := run.config.get("run.shard")) is None:
            raise InvalidInput(f"{run.folder} is no shard; give folders of runs with run.shard=I/N")
        shard = Shard.read(str(text))
        count = count or shard.count
        other = by_index.get(shard.index, run).folder
        refuse(
            {
                f"{runs[0].folder} is one of {number_of(count, 'shard')}, {run.folder} one of "
                f"{shard.count}": shard.count != count,
                f"{other} and {run.folder} are both shard {text}; leave one out": (
                    shard.index in by_index
                ),
            }
        )
        by_index[shard.index] = run
    if missing := [f"{index}/{count}" for index in range(1, count + 1) if index not in by_index]:
        raise InvalidInput(
            f"shards are missing: {', '.join(missing)}; run them with run.shard={missing[0]}"
        )
    first, *others = ordered = [by_index[index] for index in range(1, count + 1)]
    for run in others:
        changes = [
            *changed_values(first.config, run.config, FREE),
            *differences(first.made_from, run.made_from),
        ]
        if changes:
            raise InvalidInput(
                f"{first.folder} and {run.folder} are not parts of one run:\n{listed(changes)}"
            )
    return ordered


def problem_ids(runs: Sequence[FinishedRun]) -> list[str]:
    """All problems in the order of the data set, then the rows that could not be used. Raises
    InvalidInput for problems that are left to solve, and for one that two shards hold."""
    owners: dict[str, Path] = {}
    for run in runs:
        names = run.made_from.get("data", {})
        left = run.left
        refuse(
            {
                f"{run.folder} holds no fingerprint.json with its problems; restore it, or run it "
                "again": not names,
                f"{run.folder} has {len(left)} of {number_of(len(names), 'problem')} left "
                f"({', '.join(left[:1])}); run that shard again to go on": left,
                **{
                    f"{owners[name]} and {run.folder} both hold problem {name}; give the parts of "
                    "one run": True
                    for name in names
                    if name in owners
                },
            }
        )
        owners |= dict.fromkeys(names, run.folder)
    return [*_in_turn(runs, usable=True), *_in_turn(runs, usable=False)]


def _in_turn(runs: Sequence[FinishedRun], usable: bool) -> list[str]:
    parts = [
        [n for n, mark in run.made_from["data"].items() if (mark != UNUSABLE) == usable]
        for run in runs
    ]
    return [name for turn in zip_longest(*parts) for name in turn if name is not None]


def _shards_of(out: Path) -> list[Path]:
    pattern = re.compile(re.escape(out.name) + r"-shard\d+of\d+")
    shards = sorted(path for path in out.parent.glob("*") if pattern.fullmatch(path.name))
    if not shards:
        raise InvalidInput(
            f"no folder is called {out}-shardIofN; name the shards, or run them with run.shard=I/N"
        )
    return shards
