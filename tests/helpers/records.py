"""Records of runs, compared."""

from __future__ import annotations

from typing import Any

import pytest


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
