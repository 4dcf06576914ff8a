"""A run's candidates as TRL's data sets, in its standard format (plain texts).

https://huggingface.co/docs/trl/dataset_formats
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from experiments.runs.finished import FinishedRun
from experiments.runs.reading import check_whole
from experiments.runs.rows import Row
from experiments.runs.summary import failed
from ttc.errors import InvalidInput


def stepwise_supervision(run: FinishedRun) -> list[Row]:
    """Candidates cut into their steps, each labelled with whether any candidate that goes on from
    it is right; `values` has the share of them. For TRL's PRMTrainer."""
    rows = []
    for record, branches in _solved(run):
        for branch in branches:
            steps: list[str] = []
            values: list[float] = []
            for node in record["tree"]:
                path = node["path"]
                text = node["text"].removesuffix(run.config.get("search.delimiter") or "").strip()
                if text and path and path == branch["path"][: len(path)]:
                    below = [b for b in record["branches"] if b["path"][: len(path)] == path]
                    steps.append(text)
                    values.append(sum(b["correct"] for b in below) / len(below))
            if steps:
                labels = [value > 0 for value in values]
                rows.append(_row(record, completions=steps, labels=labels, values=values))
    return _some(run, rows, "a candidate with a step")


def preference(run: FinishedRun) -> list[Row]:
    """A right candidate and a wrong one of the same problem, those with the best scores first; no
    candidate twice. For DPO and reward models."""
    rows = []
    for record, branches in _solved(run):
        right = [b["text"] for b in branches if b["correct"]]
        wrong = [b["text"] for b in branches if not b["correct"]]
        for chosen, rejected in zip(right, wrong, strict=False):
            rows.append(_row(record, chosen=chosen, rejected=rejected))
    return _some(run, rows, "both a right and a wrong candidate")


def unpaired_preference(run: FinishedRun) -> list[Row]:
    """Every candidate, and whether it is right. For KTO."""
    rows = [
        _row(record, completion=b["text"], label=bool(b["correct"]))
        for record, branches in _solved(run)
        for b in branches
    ]
    return _some(run, rows, "a candidate")


def prompt_completion(run: FinishedRun) -> list[Row]:
    """The right candidates, for supervised fine-tuning."""
    rows = [
        _row(record, completion=b["text"])
        for record, branches in _solved(run)
        for b in branches
        if b["correct"]
    ]
    return _some(run, rows, "a right candidate")


ROWS: dict[str, Callable[[FinishedRun], list[Row]]] = {
    "stepwise-supervision": stepwise_supervision,
    "preference": preference,
    "unpaired-preference": unpaired_preference,
    "prompt-completion": prompt_completion,
}


def _row(record: Row, **fields: Any) -> Row:
    return {"prompt": record["prompt"], **fields, "id": record["id"]}


def _solved(run: FinishedRun) -> Iterator[tuple[Row, list[Row]]]:
    """Each solved problem with its candidates, best scores first, of equal texts one."""
    for record in run.records.values():
        check_whole(run.folder, record)
        if failed(record) or record.get("prompt") is None:
            continue
        ordered = sorted(
            record["branches"], key=lambda b: -float("inf") if b["score"] is None else b["score"]
        )
        yield record, list({b["text"]: b for b in ordered}.values())[::-1]


def _some(run: FinishedRun, rows: list[Row], what: str) -> list[Row]:
    if not rows:
        private = run.config.get("dataset.private")
        why = " (dataset.private=true keeps no prompts)" if private else ""
        raise InvalidInput(
            f"no problem in {run.folder} has a prompt and {what}{why}, so there is nothing to write"
        )
    return rows
