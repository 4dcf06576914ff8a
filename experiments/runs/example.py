"""One solved problem, as a person reads it: the steps of the branch that won, and what it won
against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

WIDTH = 80


def telling(records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The record that shows most: solved, with a wrong loser that is rated far below; else a solved
    one; else any."""
    shown = [r for r in records if r["branches"] and r["question"]]
    solved = [r for r in shown if r["correct"] and len(r["branches"]) > 1]
    contested = [r for r in solved if any(not b["correct"] for b in r["branches"])]
    return max(contested, key=_contrast) if contested else next(iter(solved or shown), None)


def _contrast(record: dict[str, Any]) -> tuple[float, float]:
    """How well the best branch is rated, to a tenth, and by how much above the worst wrong one."""
    best, *losers = record["branches"]
    wrong = [b["score"] for b in losers if not b["correct"] and b["score"] is not None]
    if not wrong or best["score"] is None:
        return 0.0, 0.0
    return round(best["score"], 1), best["score"] - min(wrong)


def winning_steps(record: dict[str, Any]) -> list[tuple[str, float | None]]:
    nodes = {node["id"]: node for node in record["tree"]}
    best = record["branches"][0]["path"]
    node = next((n for n in record["tree"] if n["path"] == best), None)
    steps: list[tuple[str, float | None]] = []
    while node is not None and node["parent"] is not None:
        steps.append((node["text"], node["score"]))
        node = nodes[node["parent"]]
    return steps[::-1]


def example(record: dict[str, Any]) -> str:
    """A solved problem in a dozen lines: the question, the winner's steps with their scores, a line
    for each loser."""
    best, *losers = record["branches"]
    lines = [
        "\nOne problem, from its record:",
        *(f"  {line}" for line in record["question"].splitlines()),
    ]
    lines.append(f"\nThe branch that won, step by step (score {_score(best['score'])}):")
    for text, score in winning_steps(record):
        lines += [
            f"  {_score(score):>6}  {line}" for line in text.strip().splitlines() if line.strip()
        ]
    verdict = "right" if record["correct"] else f"wrong, it is {record['gold']}"
    lines.append(f"Its answer is {record['answer']}, which is {verdict}.")
    if losers:
        lines.append("\nThe branches that lost:")
        alike = Counter(f"  {_score(b['score']):>6}  {_one_line(b)}" for b in losers)
        lines += [line if n == 1 else f"{line} ({n} times)" for line, n in alike.items()]
    return "\n".join(lines)


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _one_line(branch: dict[str, Any]) -> str:
    text = (
        f"answers {branch['answer']}: "
        f"{' / '.join(filter(None, map(str.strip, branch['text'].splitlines())))}"
    )
    room = WIDTH - 20
    return text if len(text) <= room else text[: room - 3] + "..."
