"""What the page holds: one JSON value in a template, whose script draws it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.runs.finished import FinishedRun
from experiments.runs.reading import check_whole
from experiments.runs.records import chosen_branch
from experiments.runs.summary import approximations_by_settings, failed, seconds_at_work, summarise
from ttc.errors import InvalidInput
from ttc.tool_calls import call_text

TEMPLATE = Path(__file__).with_name("page.html")
BARS = 20
SHARED = 200
"""The most words that questions are compared by."""


def page(data: dict[str, Any]) -> str:
    """The page. Without any `<` in the data, nothing that a model wrote can end the script that
    holds it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )
    return TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", text)


def page_data(run: FinishedRun, limit: int, only: Sequence[str] = ()) -> dict[str, Any]:
    """The figures of all problems, and the trees of the first `limit`, or of those whose ids are in
    `only`.

    Raises InvalidInput for records without a tree as this version writes it, and for an unknown id.
    """
    if limit < 1:
        raise InvalidInput(f"--limit={limit} must be at least 1")
    if unknown := [name for name in only if name not in run.records]:
        raise InvalidInput(
            f"--problem={unknown[0]} is not in {run.folder}; its ids begin with "
            f"{next(iter(run.records))}"
        )
    records = sorted(run.records.values(), key=_natural)
    for record in records:
        check_whole(run.folder, record)
    chosen = [run.records[name] for name in only] if only else records[:limit]
    labels = distinct_labels([record.get("question") or "" for record in chosen])
    config = run.config
    summary = summarise(records) | {"seconds": seconds_at_work(records)}
    summary["approximate"] |= approximations_by_settings(config.get, summary, records)
    return {
        "name": run.folder.name,
        "summary": summary,
        "made": {
            "model": config.get("model.name"),
            "dataset": config.get("dataset.name"),
            "search": _class(config.get("search._target_")),
            "verifier": _class(config.get("verifier._target_")),
            "seed": config.get("run.seed"),
        },
        "histogram": _histogram(records),
        "left_out": len(chosen) < len(records),
        "problems": [
            _problem(record) | {"label": label}
            for record, label in zip(chosen, labels, strict=True)
        ],
    }


def distinct_labels(questions: Sequence[str]) -> list[str]:
    """The questions without the words that most begin with; whole where nothing else is left."""
    words = [question.split() for question in questions]
    starts = Counter(
        tuple(each[:n]) for each in words for n in range(1, min(len(each), SHARED) + 1)
    )
    labels = []
    for each in words:
        shared = 0
        while starts[tuple(each[: shared + 1])] > max(1, len(words) / 2) and shared < len(each):
            shared += 1
        rest = " ".join(each[shared:])
        labels.append(f"…{rest}" if shared and rest else " ".join(each))
    return labels


def _problem(record: dict[str, Any]) -> dict[str, Any]:
    best = chosen_branch(record)
    branches = {tuple(branch["path"]): branch for branch in record["branches"]}
    nodes = [_node(node, branches.get(tuple(node["path"]))) for node in record["tree"]]
    path = None if best is None else best["path"]
    return {
        "id": record["id"],
        "question": record.get("question"),
        "prompt": record.get("prompt"),
        "gold": record.get("gold"),
        "answer": record["answer"],
        "correct": record["correct"],
        "failed": failed(record),
        "error": record["error"],
        "skipped": record["usage"].get("verifications_skipped", 0),
        "usage": {
            name: record["usage"].get(name, 0)
            for name in ("generated_tokens", "verifier_tokens", "thinking_tokens", "tool_calls")
        },
        "chosen": next((node["id"] for node in record["tree"] if node["path"] == path), None),
        "nodes": nodes,
    }


def _node(node: dict[str, Any], branch: dict[str, Any] | None) -> dict[str, Any]:
    logprobs = [value for value in node.get("logprobs", ()) if value is not None]
    return {
        **{
            name: node[name]
            for name in ("id", "parent", "path", "text", "score", "step_scores", "status")
        },
        "thought": node["text"][: node.get("thought", 0)],
        "calls": list(map(_call, node.get("tool_calls", ()))),
        "from": node["start"],
        "own": node["own_tokens"],
        "logprob": sum(logprobs) / len(logprobs) if logprobs else None,
        "answer": None if branch is None else branch["answer"],
        "correct": None if branch is None else branch["correct"],
    }


def _call(call: dict[str, Any]) -> str:
    answer = "(left to the caller)" if call.get("answer") is None else call["answer"]
    return f"{call_text(call['name'], call.get('arguments', {}))}\n{answer}"


def _natural(record: dict[str, Any]) -> list[tuple[int, str]]:
    """Sorts p2 before p10; a run writes records as problems end."""
    return [
        (int(piece), "") if piece.isdecimal() else (-1, piece)
        for piece in re.split(r"(\d+)", record["id"])
    ]


def _class(target: Any) -> str:
    return "none" if target is None else str(target).rpartition(".")[2]


def _histogram(records: Sequence[dict[str, Any]]) -> list[dict[str, int]]:
    """Problems by their generated tokens, right and wrong ones apart, in at most `BARS` bars."""
    tokens = [record["usage"]["generated_tokens"] for record in records]
    low, high = min(tokens), max(tokens)
    width = (high - low) // BARS + 1
    bars = [
        {"from": start, "to": start + width - 1, "right": 0, "wrong": 0}
        for start in range(low, high + 1, width)
    ]
    for record, count in zip(records, tokens, strict=True):
        right = record["correct"] and not failed(record)
        bars[(count - low) // width]["right" if right else "wrong"] += 1
    return bars
