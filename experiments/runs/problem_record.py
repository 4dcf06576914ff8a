"""What a run writes down of a solved problem."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig

from experiments.runs.data import LoadedTask, graded
from experiments.runs.private import without_texts
from experiments.runs.records import own_figures, tree_node
from experiments.runs.summary import WITHOUT_END, failed
from ttc.backend import Backend
from ttc.errors import InvalidInput
from ttc.residency.capture import Capture
from ttc.results import BranchRecord, Result
from ttc.text.thinking_models import ends_some_thought

TIMING = (
    "forward_passes",
    "drafted_tokens",
    "accepted_tokens",
    "host_to_device_bytes",
    "device_to_host_bytes",
    "wall_s",
)
"""The parts of a problem's usage that depend on the machine and on what else ran."""


def full_record(result: Result, task: LoadedTask, config: DictConfig, engine: Backend) -> Any:
    """The record of a problem that a run has solved: `problem_record`, the exact prompt, and what
    cut the text off."""
    record = problem_record(result, task, config.run.record_tokens)
    record["prompt"] = None if result.best is None else result.prompt
    if config.model.thinking_marks is None:
        for row, branch in zip(record["branches"], result.branches, strict=True):
            if ends_some_thought(branch.answer_text):
                row["thought_unknown"] = True
    if config.dataset.private:
        without_texts(record, [*result.problem.metadata.values(), result.problem.messages or ""])
    record["truncated_by"] = _truncated_by(result, config.run)
    memory = getattr(engine, "memory", None)  # a backend may keep KV elsewhere
    peak = None if memory is None else memory.device.peak_bytes + memory.host.peak_bytes
    record["timing"]["kv_peak_bytes"] = peak
    residency = getattr(engine, "residency", None)
    if isinstance(residency, Capture):
        act_blocks, blocks = residency.take_made()
        record["timing"] |= {"act_blocks": act_blocks, "blocks": blocks}
    return record


def problem_record(result: Result, task: LoadedTask, with_tokens: bool = False) -> dict[str, Any]:
    """What is known of a problem without the run. with_tokens: see `tree_node`."""
    problem = result.problem
    usage = result.usage.to_dict()
    marks, grades, error = _grades(result, task)
    branches = [
        {
            "path": list(branch.path),
            "text": branch.text,
            **mark,
            "score": branch.score,
            "step_scores": branch.step_scores,
            "finish_reason": branch.finish_reason,
            "looped": "looped" in (branch.thought_closed, *branch.step_reasons),
            "tokens": len(branch.generated),
            **own_figures(branch),
            **_thinking(branch),
            **({"tool_calls": list(map(asdict, calls))} if (calls := branch.tool_calls) else {}),
            "substituted": None if branch.substituted is None else branch.substituted.similarity,
        }
        for branch, mark in zip(result.branches, marks, strict=True)
    ]
    return {
        "id": problem.id,
        "question": problem.question or None,
        "gold": problem.answer,
        "source": problem.metadata.get("source"),
        **({"order_of": first} if (first := problem.metadata.get("order_of")) else {}),
        **grades,
        "error": error,
        "truncated": _has_no_end(result),
        "truncated_by": None,
        "stopped": result.stopped,
        "branches": branches,
        "pruned": result.pruned,
        "tree": [tree_node(node, with_tokens) for node in result.tree],
        "usage": {k: v for k, v in usage.items() if k not in TIMING},
        "timing": {k: usage[k] for k in TIMING} | {"finished_at": time.time()},
    }


def votes_by_path(
    result: Result, task: LoadedTask, answers: Sequence[str | None]
) -> list[str | None]:
    """What each branch's answer votes for, grouped in the order of their paths as a search does."""
    paths = [branch.path for branch in result.branches]
    places = sorted(range(len(paths)), key=paths.__getitem__)
    reader = task.reading.voting(result.problem)
    votes = dict(zip(places, reader.ballots([answers[place] for place in places]), strict=True))
    return [votes[place] for place in range(len(paths))]


def _grades(
    result: Result, task: LoadedTask
) -> tuple[list[dict[str, Any]], dict[str, Any], str | None]:
    """Each branch's answer and whether it is right; the same of the result; and its error, which is
    that of a function of the user's own where one fails on a branch."""
    problem = result.problem
    error = result.error
    try:
        answers = [task.reading.answer(problem, branch) for branch in result.branches]
        votes = votes_by_path(result, task, answers)
        branches: list[dict[str, Any]] = [
            {"answer": answer, "vote": vote, "correct": task.is_correct(problem, answer)}
            for answer, vote in zip(answers, votes, strict=True)
        ]
        grades = graded(task, result)
    except InvalidInput as failure:
        branches = [{"answer": None, "vote": None, "correct": False} for _ in result.branches]
        grades = {"answer": result.answer}
        error = error if failed({"error": error}) else f"{type(failure).__name__}: {failure}"
    if failed({"error": error}):
        grades |= {"correct": False, "correct_strict": False}
    return branches, grades, error


def _thinking(branch: BranchRecord) -> dict[str, Any]:
    """thought_end: what ended the thought: "limit", "looped", "cut" where nothing did, or "model"
    where the model itself did."""
    cut = branch.answer_text is None
    if not branch.thought and not branch.thinking_tokens and not cut:
        return {}
    return {
        "thought": branch.thought,
        "thinking_tokens": branch.thinking_tokens,
        "thought_end": "cut" if cut else branch.thought_closed or "model",
    }


def _has_no_end(result: Result) -> bool:
    return result.best is not None and result.best.finish_reason in WITHOUT_END


def _truncated_by(result: Result, limits: DictConfig) -> str | None:
    """What left the chosen text without an end: "context", "looped", a budget by the name of its
    setting, or "search"."""
    if result.best is None or not _has_no_end(result):
        return None
    if result.best.finish_reason is not None:
        return result.best.finish_reason
    spent = {
        "max_generated_tokens": result.usage.generated_tokens,
        "max_tokens": result.usage.budgeted_tokens,
    }
    for name, tokens in spent.items():
        if limits[name] is not None and tokens >= limits[name]:
            return f"run.{name}"
    return "search" if result.stopped is None else f"run.{result.stopped}"
