"""Records of runs: read, compared, and made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def records(place: Path, name: str = "r") -> list[dict[str, Any]]:
    """Those of the run that lies in `outputs` of this place, in the order of the file."""
    lines = (place / "outputs" / name / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def by_id(place: Path, name: str = "r") -> dict[str, dict[str, Any]]:
    """The same `without_costs`; no problem is there twice."""
    found = records(place, name)
    named = {record["id"]: without_costs(record) for record in found}
    assert len(named) == len(found)
    return named


def candidate(place: int, answer: str | None, correct: bool = False, **more: Any) -> dict[str, Any]:
    """A branch of a record that nobody ran."""
    return {"path": [place], "answer": answer, "correct": correct, "tokens": 5, **more}


def made_up(*branches: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A record that nobody ran, with what a summary is made of. The first branch was chosen."""
    first = branches[0] if branches else {"answer": None, "correct": False}
    return {
        "id": "p",
        "answer": first["answer"],
        "correct": first["correct"],
        "correct_strict": first["correct"],
        "error": None,
        "branches": list(branches),
        "tree": [],
        "usage": {
            "generated_tokens": sum(branch["tokens"] for branch in branches),
            "verifier_tokens": 3,
            "prompt_tokens": 4,
        },
        "timing": {"host_to_device_bytes": 0, "device_to_host_bytes": 0, "kv_peak_bytes": 2048},
    } | changes


def without_costs(record: dict[str, Any]) -> dict[str, Any]:
    """What of a record does not depend on the problems beside it, some of whose prompt it may have
    shared."""
    usage = {
        name: n
        for name, n in record["usage"].items()
        if name not in ("prompt_tokens", "shared_tokens")
    }
    return {name: value for name, value in record.items() if name != "timing"} | {"usage": usage}


def roughly(value: Any) -> Any:
    """Equal to any value in which numbers with fractions differ by rounding; some are kept to three
    digits."""
    if isinstance(value, float):
        return pytest.approx(value, abs=2e-3)
    if isinstance(value, dict):
        return {key: roughly(part) for key, part in value.items()}
    return list(map(roughly, value)) if isinstance(value, list) else value
