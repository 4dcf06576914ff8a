"""One solved problem, as a person reads it: the steps of the branch that won, and what it won
against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from experiments.runs.records import chosen_branch, vote_of
from search.selection import Voting

WIDTH = 80
RULES: dict[Voting, str] = {
    "majority": "The answer with the most votes wins",
    "weighted": "The answer whose votes have the highest total score wins",
}


def telling(records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The record that shows most: solved, with a wrong loser that is rated far below; else a solved
    one; else any."""
    usable = [r for r in records if r["branches"] and r["question"]]
    solved = [r for r in usable if r["correct"] and len(r["branches"]) > 1]
    contested = [r for r in solved if any(not b["correct"] for b in r["branches"])]
    return max(contested, key=_contrast) if contested else next(iter(solved or usable), None)


def _contrast(record: dict[str, Any]) -> tuple[float, float]:
    """How well the winner is rated, to a tenth, and by how much above the worst wrong branch."""
    won = winner(record)["score"]
    others = (b for b in record["branches"] if not b["correct"])
    wrong = [b["score"] for b in others if b["score"] is not None]
    if not wrong or won is None:
        return 0.0, 0.0
    return round(won, 1), won - min(wrong)


def winner(record: dict[str, Any]) -> dict[str, Any]:
    """The best branch with the answer that the search gave, of a record that has branches. They are
    best first, but where they vote the first one may have lost."""
    chosen = chosen_branch(record)
    assert chosen is not None
    return chosen


def winning_steps(record: dict[str, Any]) -> list[tuple[str, float | None]]:
    nodes = {node["id"]: node for node in record["tree"]}
    path = winner(record)["path"]
    node = next((n for n in record["tree"] if n["path"] == path), None)
    steps: list[tuple[str, float | None]] = []
    while node is not None and node["parent"] is not None:
        steps.append((node["text"], node["score"]))
        node = nodes[node["parent"]]
    return steps[::-1]


def example(record: dict[str, Any], voting: Voting | None = None) -> str:
    """A solved problem in a dozen lines: the question, the winner's steps with their scores, how
    many votes it has, a line for each other branch.

    voting: the search's (see `Search.voting`). Where a limit ended the search, no votes are told,
    as the branch that got its reserve is the answer without any.
    """
    best = winner(record)
    others = [branch for branch in record["branches"] if branch is not best]
    lines = ["\nOne problem, from its record:"]
    lines += [f"  {line}" for line in record["question"].splitlines()]
    lines.append(f"\nThe branch that won, step by step (score {_score(best['score'])}):")
    for text, score in winning_steps(record):
        kept = filter(str.strip, text.strip().splitlines())
        lines += [f"  {_score(score):>6}  {line}" for line in kept]
    verdict = "right" if record["correct"] else f"wrong, it is {record['gold']}"
    lines.append(f"Its answer is {record['answer']}, which is {verdict}.")
    vote = vote_of(best)
    if voting is not None and vote is not None and not record["stopped"]:
        votes = list(map(vote_of, record["branches"]))
        won = f"{votes.count(vote)} of {len(votes) - votes.count(None)} votes"
        lines.append(f"{RULES[voting]}: {record['answer']} has {won}.")
    if others:
        lines.append("\nThe other branches:")
        alike = Counter(f"  {_score(b['score']):>6}  {_one_line(b)}" for b in others)
        lines += [line if n == 1 else f"{line} ({n} times)" for line, n in alike.items()]
    return "\n".join(lines)


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _one_line(branch: dict[str, Any]) -> str:
    lines = filter(None, map(str.strip, branch["text"].splitlines()))
    text = f"answers {branch['answer']}: {' / '.join(lines)}"
    room = WIDTH - 20
    return text if len(text) <= room else text[: room - 3] + "..."
