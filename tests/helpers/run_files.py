"""The files of a run that nobody ran, with a small tree for each problem."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def node(
    number: int, parent: int | None, path: list[int], text: str, score: float | None, status: str
) -> Any:
    return {
        "id": number,
        "parent": parent,
        "path": path,
        "text": text,
        "tokens": 3 * len(path),
        "score": score,
        "step_scores": [] if score is None else [score],
        "status": status,
        "start": 0 if parent is None else 4 + 3 * len(path),
        "own_tokens": 7 if parent is None else 3,
    }


def record(name: str, correct: bool, text: str = "one", **changes: Any) -> dict[str, Any]:
    """A problem whose tree has two first steps; the better one has two children, one of which was
    chosen."""
    branch = {
        "path": [0, 1],
        "text": "the answer",
        "answer": "7",
        "correct": correct,
        "score": 0.9,
        "tokens": 6,
    }
    return {
        "id": name,
        "question": f"what is {name}? {text}",
        "gold": "7" if correct else "8",
        "prompt": f"Question: {name}",
        "answer": "7",
        "correct": correct,
        "correct_strict": correct,
        "error": None,
        "branches": [
            branch
            | {
                "path": [0, 0],
                "text": "worse answer",
                "answer": "6",
                "correct": False,
                "score": 0.95,
            },
            branch,
        ],
        "tree": [
            node(0, None, [], "", None, "root"),
            node(1, 0, [0], f"first {text}", 0.8, "expanded"),
            node(2, 0, [1], "second", 0.1, "pruned"),
            node(3, 1, [0, 0], "worse", 0.95, "kept"),
            node(4, 1, [0, 1], "better", 0.9, "finished"),
        ],
        "usage": {
            "generated_tokens": 12,
            "verifier_tokens": 5,
            "prompt_tokens": 7,
            "verifications_skipped": 0,
        },
        "timing": {
            "finished_at": 10.0,
            "wall_s": 4.0,
            "host_to_device_bytes": 0,
            "device_to_host_bytes": 0,
        },
    } | changes


def save(place: Path, records: Sequence[dict[str, Any]]) -> Path:
    folder = place / "r"
    folder.mkdir()
    config = {
        "model": {"name": "m"},
        "search": {"_target_": "search.BeamSearch"},
        "run": {"name": "r", "seed": 0},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"dataset": {"name": "d"}}))
    (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder
