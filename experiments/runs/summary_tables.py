"""Summaries of runs as tables on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from experiments.cli.labels import labels, typed_settings
from experiments.cli.tables import Table, labelled
from experiments.runs.summary import counts_line, kind_line
from ttc.errors import number_of

SHOWN_REASONS = 5

MANY = 0.05
"""Above this share of branches a line names the setting that may help."""

LIMITS = ("max_tokens", "max_steps", "step_tokens")
"""Settings of searches that may cut an answer."""


def _room(cause: str, settings: Collection[str]) -> str:
    """What gives more room where `cause` left a text without an end."""
    if cause == "context":
        return "a model with a longer context"
    limits = [f"search.{name}" for name in LIMITS if name in settings]
    return cause if cause != "search" else " or ".join(limits) or "the search's own limits"


def _cut_off(summary: dict[str, Any], settings: Collection[str]) -> Iterator[str]:
    """How many answers have no end, and the limit that cut them."""
    for cause, count in summary.get("truncated_by", {}).items():
        answers = number_of(count, "answer")
        if cause == "looped":
            yield f"{answers} in circles; other samples: search.temperature"
        else:
            yield f"{answers} without an end; more tokens: {_room(cause, settings)}"


def _advice(summary: dict[str, Any], settings: Collection[str]) -> Iterator[str]:
    """What may help where many branches are not as they should be."""
    counts = summary["branches"]
    causes = {cause: n for cause, n in summary["truncated_by"].items() if cause != "looped"}
    room = f"raise {_room(max(causes, key=causes.__getitem__, default='search'), settings)}"
    have_ends = counts["without_an_end"] == counts["looped"]
    ways = {
        "no_answer_read": "look at the texts, and at dataset.instruction" if have_ends else room,
        "without_an_end": room,
        "looped": "raise search.temperature",
        "thoughts_unknown": 'name the marks, as model.thinking_marks=\'["<think>","</think>"]\'',
        "thoughts_closed_by_limit": "raise search.thinking_tokens",
        "thoughts_cut": f"{room}, or set search.thinking_tokens",
    }
    for name, way in ways.items():
        any_time = name in ("looped", "thoughts_closed_by_limit", "thoughts_unknown")
        branches = counts["count"] - (0 if any_time else counts.get("pruned_early", 0))
        if (count := counts.get(name, 0)) > MANY * branches:
            yield f"{count / branches:.0%} of branches {name.replace('_', ' ')}: {way}"
    if counts["tied_votes"] > MANY * summary["problems"] and "n" in settings:
        yield f"{counts['tied_votes'] / summary['problems']:.0%} of votes tied: raise search.n"


def table(name: str, summary: dict[str, Any], settings: Collection[str] = ()) -> str:
    """settings: the names of the search's."""
    low, high = summary["accuracy_95"]
    moved = [summary["host_to_device_bytes"] / 2**20, summary["device_to_host_bytes"] / 2**20]
    count = f"{summary['problems']} ({summary['failures']} failed)"
    if questions := summary.get("questions"):
        count += f", orders of {number_of(questions, 'question')}"
    rows = [
        ("problems", count),
        ("accuracy", f"{summary['accuracy']:.1%}  [95%: {low:.1%} to {high:.1%}]"),
        *(("cut off", text) for text in _cut_off(summary, settings)),
        *([("branches", line)] if (line := counts_line(summary["branches"])) else []),
        *((f"pass@{k}", f"{v:.1%}") for k, v in summary["pass_at_k"].items()),
        *((f"maj@{k}", f"{v:.1%}") for k, v in summary["maj_at_k"].items()),
        ("tokens per problem", f"{summary['generated_tokens_per_problem']:.0f}"),
        ("verifier tokens", f"{summary['verifier_tokens']}"),
        *(
            (f"approximate: {what.replace('_', ' ')}", str(n))
            for what, n in summary["approximate"].items()
        ),
    ]
    if why := summary.get("samples_depend_on_sittings"):
        count = summary["sittings"]
        rows.append(("sittings", f"{count}; {why} one go may have given other samples"))
    if any(moved):
        rows.append(("moved", f"{moved[0]:,.1f} MiB to the device, {moved[1]:,.1f} MiB back"))
    if "act_blocks" in summary:
        rows.append(("ACT blocks", f"{summary['act_blocks']:,} of {summary['blocks']:,} blocks"))
    link = ", over a simulated link" if "simulated_link_gbps" in summary else ""
    rows.append(("time", f"{summary['seconds']:.1f} s{link}"))
    rows += [("advice", text) for text in _advice(summary, settings)]
    return f"\n{name}\n{labelled(rows)}"


def failures(summary: dict[str, Any]) -> str:
    """How many problems failed, for which reasons, and what can be done; empty where none did."""
    if not summary["failures"]:
        return ""
    reasons = summary["failure_reasons"]
    count, problems = summary["failures"], number_of(summary["problems"], "problem")
    counts = "counts" if count == 1 else "count"
    lines = [f"\n{count} of {problems} failed and {counts} as wrong:"]
    lines += [f"  {kind_line(entry)}" for entry in reasons[:SHOWN_REASONS]]
    if more := sum(entry["count"] for entry in reasons[SHOWN_REASONS:]):
        lines.append(f"  {more} x other reasons, see `error` in the records")
    lines.append("the same command with run.retry_failed=true runs them again")
    return "\n".join(lines)


def sweep_table(jobs: Sequence[tuple[Sequence[str], dict[str, Any] | str]]) -> str:
    """One line for each job of a sweep: (its overrides, its summary or why it failed)."""
    names = labels([typed_settings(overrides) for overrides, _ in jobs])
    columns = ("job", "accuracy", "95% interval", "tokens", "failed", "time")
    lines, notes = [], []
    for name, (_, outcome) in zip(names, jobs, strict=True):
        if isinstance(outcome, str):
            notes.append(f"{name}: error: {outcome}")
            lines.append([name, "error", *["-"] * 4])
            continue
        interval = " to ".join(f"{end:.1%}" for end in outcome["accuracy_95"])
        tokens = f"{outcome['generated_tokens_per_problem']:.0f}"
        counts = (tokens, str(outcome["failures"]), f"{outcome['seconds']:.1f} s")
        lines.append([name, f"{outcome['accuracy']:.1%}", interval, *counts])
        if line := counts_line(outcome.get("branches", {})):
            notes.append(f"{name}: branches: {line}")
    head = f"{number_of(len(jobs), 'job')}; tokens are generated tokens per problem"
    return "\n" + "\n\n".join([f"{head}\n{Table('', columns, lines).text()}", *notes])
