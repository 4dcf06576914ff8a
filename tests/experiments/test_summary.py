"""What records add up to."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.summary import failure_reasons, majority, pass_at_k, summarise, wilson


def test_wilson() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(8, 20) == pytest.approx((0.2188, 0.6134), abs=1e-4)  # published example values
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


@given(st.integers(1, 7), st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_pass_at_k_counts_subsets(n: int, data: Any) -> None:
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    hits = [any(i < correct for i in subset) for subset in itertools.combinations(range(n), k)]
    assert math.isclose(pass_at_k(n, correct, k), sum(hits) / len(hits))


def test_majority_and_summary() -> None:
    assert majority(["3", None, "4", "3.0", "4"]) == "3"
    assert majority([None, None]) is None

    def record(answers: list[str], right: str) -> dict[str, Any]:
        branches = [{"path": [i], "answer": a, "correct": a == right} for i, a in enumerate(answers)]
        usage = {"generated_tokens": 10, "verifier_tokens": 2, "prompt_tokens": 5}
        return {
            "correct": answers[0] == right,
            "correct_strict": False,
            "error": None,
            "branches": branches,
            "usage": usage,
            "timing": {"host_to_device_bytes": 7, "device_to_host_bytes": 3},
        }

    summary = summarise([record(["1", "2", "2", "5"], "2"), record(["7", "7", "8", "9"], "7")])
    assert summary["accuracy"] == 0.5 and summary["accuracy_strict"] == 0.0
    assert summary["pass_at_k"] == pytest.approx({"1": 0.5, "2": (5 / 6 + 5 / 6) / 2, "4": 1.0})
    assert summary["maj_at_k"] == {"1": 0.5, "2": 0.5, "4": 1.0}
    assert (summary["host_to_device_bytes"], summary["device_to_host_bytes"]) == (14, 6)
    assert (summary["generated_tokens"], summary["verifier_tokens"]) == (20, 4)
    assert summary["approximate"] == {}
    failed = record(["1"], "2") | {"branches": [], "error": "InvalidInput: ..."}
    failed["usage"] |= {"gated_branches": 3, "verifications_skipped": 2}
    summary = summarise([record(["7", "7"], "7"), failed])
    assert (summary["pass_at_k"], summary["maj_at_k"]) == ({"1": 0.5, "2": 0.5}, {"1": 0.5, "2": 0.5})
    assert summary["approximate"] == {"problems_not_verified": 1, "branches_stopped_by_the_gate": 3}


def test_a_failed_problem_is_wrong_whatever_its_branches_hold() -> None:
    def record(error: str | None) -> dict[str, Any]:
        return {
            "correct": True,
            "correct_strict": True,
            "error": error,
            "branches": [{"path": [0], "answer": "3", "correct": True}],
            "usage": {"generated_tokens": 10, "verifier_tokens": 0, "prompt_tokens": 5},
            "timing": {"host_to_device_bytes": 0, "device_to_host_bytes": 0},
        }

    summary = summarise([record(None), record("VerifierError: V raised E: no"), record("BudgetExceeded: 9 tokens")])
    assert (summary["correct"], summary["failures"]) == (2, 1)
    assert summary["accuracy"] == summary["accuracy_strict"] == pytest.approx(2 / 3)
    assert summary["pass_at_k"] == summary["maj_at_k"] == {"1": pytest.approx(2 / 3)}


def test_reasons_that_differ_in_numbers_or_names_are_one() -> None:
    errors = [
        "InvalidInput: the prompt has 9,001 tokens",
        "KeyError: the row has no field 'question'",
        None,
        "InvalidInput: the prompt has 12 tokens",
        "BudgetExceeded: 9 tokens",
    ]
    assert failure_reasons([{"error": error} for error in errors]) == [
        {"reason": "InvalidInput: the prompt has 9,001 tokens", "count": 2},
        {"reason": "KeyError: the row has no field 'question'", "count": 1},
    ]
