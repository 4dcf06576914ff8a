"""Shards put together by their problems' ids, once it is sure that they are the parts of one run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.eval.compare.runs import Run
from experiments.runs.fingerprint import UNUSABLE, differences
from experiments.runs.job import summary_of
from experiments.runs.records import MAY_CHANGE, RunFolder
from experiments.runs.screen import table
from experiments.runs.shards import Shard
from ttc.errors import InvalidInput

FREE = {*MAY_CHANGE, "run.name"} - {"dataset.limit", "dataset.size"}
"""Settings in which shards may differ; not those that say which problems there are."""


def merge(out: Path, folders: Sequence[Path] = ()) -> None:
    """Write `out` from these shards, or from all folders that are called as its shards are.

    Raises InvalidInput where shards are missing, unfinished or given twice, hold the same problem, or were made with
    other settings, data or weights.
    """
    runs = in_order([Run.load(folder) for folder in folders or _beside(out)])
    ids = problem_ids(runs)
    records = {name: record for run in runs for name, record in run.records.items()}
    config = OmegaConf.load(runs[0].folder / "config.yaml")
    assert isinstance(config, DictConfig)
    config.run.shard, config.run.name, config.run.output_dir = None, out.name, str(out.parent)
    inputs: dict[str, dict[str, str]] = {}
    for run in runs:
        for part, known in run.made_from.items():
            inputs.setdefault(part, {}).update(known)
    with RunFolder(config) as folder:
        if folder.records:
            raise InvalidInput(f"{out} holds {len(folder.records)} records already; give another folder, or delete it")
        folder.check_inputs(inputs)
        folder.made_by(*(go for run in runs for go in _goes(run.folder)))
        folder.append(*(records[name] for name in ids))
        summary = summary_of(config, [records[name] for name in ids], folder.goes)
        folder.write_summary(summary)
    print(table(out.name, summary))
    print(f"\n{len(runs)} shards: {out}")


def in_order(runs: Sequence[Run]) -> list[Run]:
    """The runs by their place among the shards. Raises InvalidInput unless they are all parts of one run."""
    count, by_index = 0, dict[int, Run]()
    for run in runs:
        text = run.config.get("run.shard")
        if text is None:
            raise InvalidInput(f"{run.folder} is no shard; give folders of runs with run.shard=I/N")
        shard = Shard.read(str(text))
        if by_index and shard.count != count:
            raise InvalidInput(f"{runs[0].folder} is one of {count} shards, {run.folder} one of {shard.count}")
        if shard.index in by_index:
            raise InvalidInput(f"{by_index[shard.index].folder} and {run.folder} are both shard {text}; leave one out")
        count, by_index[shard.index] = shard.count, run
    if missing := [f"{index}/{count}" for index in range(1, count + 1) if index not in by_index]:
        raise InvalidInput(f"shards are missing: {', '.join(missing)}; run them with run.shard={missing[0]}")
    first, *others = ordered = [by_index[index] for index in range(1, count + 1)]
    for run in others:
        lines = [
            f"{key}: {first.config.get(key)!r} -> {run.config.get(key)!r}"
            for key in sorted((first.config.keys() | run.config.keys()) - FREE)
            if first.config.get(key) != run.config.get(key)
        ]
        if lines := lines + differences(first.made_from, run.made_from):
            listed = "\n".join(f"  {line}" for line in lines)
            raise InvalidInput(f"{first.folder} and {run.folder} are not parts of one run:\n{listed}")
    return ordered


def problem_ids(runs: Sequence[Run]) -> list[str]:
    """All problems in the order of the data set, then the rows that could not be used. Raises InvalidInput for problems
    that are left to solve, and for one that two shards hold."""
    owners: dict[str, Path] = {}
    for run in runs:
        names = run.made_from.get("data", {})
        if not names:
            raise InvalidInput(f"{run.folder} holds no fingerprint.json with its problems; restore it, or run it again")
        if left := [name for name in names if name not in run.records]:
            raise InvalidInput(
                f"{run.folder} has {len(left)} of {len(names)} problems left ({left[0]}); run that shard again to go on"
            )
        for name in names:
            if name in owners:
                raise InvalidInput(
                    f"{owners[name]} and {run.folder} both hold problem {name}; give the parts of one run"
                )
            owners[name] = run.folder
    return [*_in_turn(runs, usable=True), *_in_turn(runs, usable=False)]


def _in_turn(runs: Sequence[Run], usable: bool) -> list[str]:
    """One of each shard after the other, as the problems were dealt out."""
    parts = [[n for n, mark in run.made_from["data"].items() if (mark != UNUSABLE) == usable] for run in runs]
    return [name for turn in zip_longest(*parts) for name in turn if name is not None]


def _beside(out: Path) -> list[Path]:
    pattern = re.compile(re.escape(out.name) + r"-shard\d+of\d+")
    found = sorted(path for path in out.parent.glob("*") if pattern.fullmatch(path.name))
    if not found:
        raise InvalidInput(f"no folder is called {out}-shardIofN; name the shards, or run them with run.shard=I/N")
    return found


def _goes(folder: Path) -> list[dict[str, Any]]:
    file = folder / "provenance.json"
    goes: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return goes
