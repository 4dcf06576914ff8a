"""What records add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.runs.problem_loop import run
from experiments.runs.summary import (
    failure_reasons,
    kind_line,
    kinds_of_errors,
    seconds_at_work,
    summarise,
    votes,
)
from tests.helpers.records import candidate, made_up
from tests.helpers.runs import composed
from ttc.residency.streaming_heads import save_streaming_heads


def test_answers_that_are_the_same_number_are_one_vote() -> None:
    answers = ["3", None, "4", "3.0", " ", "4"]
    branches = [candidate(i, answer, answer == "4") for i, answer in enumerate(answers)]
    assert votes(branches) == ([(2, False), (2, True)], 2)


def test_the_summary_of_two_problems() -> None:
    def record(answers: list[str], right: str) -> dict[str, Any]:
        branches = [candidate(i, a, a == right) for i, a in enumerate(answers)]
        timing = {"host_to_device_bytes": 7, "device_to_host_bytes": 3}
        return made_up(*branches, correct_strict=False, timing=timing)

    summary = summarise([record(["1", "2", "2", "5"], "2"), record(["7", "7", "8", "9"], "7")])
    assert summary["accuracy"] == 0.5 and summary["accuracy_strict"] == 0.0
    assert summary["pass_at_k"] == pytest.approx({"1": 0.5, "2": (5 / 6 + 5 / 6) / 2, "4": 1.0})
    assert summary["maj_at_k"] == {"1": 0.5, "2": 0.5, "4": 1.0}
    assert (summary["host_to_device_bytes"], summary["device_to_host_bytes"]) == (14, 6)
    spent = [summary[f"{kind}_tokens"] for kind in ("generated", "verifier", "prompt")]
    assert spent == [40, 6, 8] and summary["approximate"] == {}
    failed = record(["1"], "2") | {"branches": [], "error": "InvalidInput: ..."}
    failed["usage"] |= {"gated_branches": 3, "verifications_skipped": 2}
    summary = summarise([record(["7", "7"], "7"), failed])
    assert summary["pass_at_k"] == summary["maj_at_k"] == {"1": 0.5, "2": 0.5}
    assert summary["approximate"] == {"problems_not_verified": 1, "branches_stopped_by_the_gate": 3}


def test_branches_that_say_nothing_and_ties_are_counted_over_all_of_them() -> None:
    def record(answers: list[str | None], ends: list[str | None]) -> dict[str, Any]:
        rows = enumerate(zip(answers, ends, strict=True))
        return made_up(*(candidate(i, answer, finish_reason=end) for i, (answer, end) in rows))

    tied = record(["3", "4", None, "3.0", "4"], ["eos", None, None, "end", "context"])
    clear = record(["3", None, None], ["eos", "eos", "gate"])
    failed = record([None], [None]) | {"error": "InvalidInput: ..."}
    counts = {"count": 8, "no_answer_read": 3, "without_an_end": 3, "tied_votes": 1, "looped": 0}
    none = {"thoughts_closed_by_limit": 0, "thoughts_cut": 0}
    assert summarise([tied, clear, failed])["branches"] == counts | none


def test_a_failed_problem_is_wrong_whatever_its_branches_hold() -> None:
    errors = (None, "VerifierError: V raised E: no", "BudgetExceeded: 9 tokens")
    summary = summarise([made_up(candidate(0, "3", True), error=error) for error in errors])
    assert (summary["correct"], summary["failures"]) == (2, 1)
    assert summary["accuracy"] == summary["accuracy_strict"] == pytest.approx(2 / 3)
    assert summary["pass_at_k"] == summary["maj_at_k"] == {"1": pytest.approx(2 / 3)}


def test_time_in_which_several_problems_are_under_way_counts_once_and_pauses_do_not() -> None:
    # ends, and lengths
    spans = [(100.0, 10.0), (103.0, 5.0), (104.0, 14.0), (200.0, 2.0), (90.0, 0.0)]
    records = [{"timing": {"finished_at": end, "wall_s": wall}} for end, wall in spans]
    assert seconds_at_work(records) == 14 + 2
    assert seconds_at_work([]) == 0


def test_reasons_that_differ_in_numbers_or_names_are_one() -> None:
    errors = [
        "InvalidInput: the prompt has 9,001 tokens",
        "KeyError: the row has no field 'question'",
        None,
        "InvalidInput: the prompt has 12 tokens",
        "BudgetExceeded: 9 tokens",
    ]
    assert failure_reasons([{"error": error} for error in errors]) == [
        {"reason": errors[0], "count": 2, "values": ["9,001", "12"]},
        {"reason": errors[1], "count": 1},
    ]


def test_a_kind_of_error_is_shown_with_the_values_that_differ_alone() -> None:
    alike = [
        f"InvalidInput: '{letter}' is none of the 4 choices, row {n}"
        for letter, n in [("E", 1), ("F", 2), ("E", 2), ("E", 1)]
    ]
    (kind,) = kinds_of_errors(alike)
    assert kind["count"] == 4 and kind["values"] == ["'E', 1", "'F', 2", "'E', 2"]
    assert kind_line(kind) == f"4 x {alike[0]} (here: 'E', 1; 'F', 2; 'E', 2)"
    (kind,) = kinds_of_errors([f"ValueError: {n} is too many" for n in range(9)])
    assert kind_line(kind).endswith("(here: 0; 1; 2; 3; 4; 4 more)")
    (kind,) = kinds_of_errors(["the box is '' #", "the box is '' #"])
    assert "values" not in kind and kind_line(kind) == "2 x the box is '' #"
    assert len(kinds_of_errors(["no answer after #### 3", "no answer after 3 ####", "# 3"])) == 3


@pytest.mark.parametrize(
    "first, second",
    [
        ("'E' is none of the choices A, B", "'F' is none of the choices A, B, C, D"),
        (r"the answer 'it\'s \"12\"' is no number", "the answer 'twelve' is no number"),
        ("the row is [1, 2], of type list", "the row is ['a', 3, 4], of type list"),
    ],
)
def test_errors_that_differ_in_a_value_are_one_kind(first: str, second: str) -> None:
    (kind,) = kinds_of_errors([first, second])
    assert kind["count"] == 2 and len(kind["values"]) == 2


@pytest.mark.slow
def test_memory_that_is_approximate_counts_its_tokens(place: Path) -> None:
    heads = place / "heads.json"
    save_streaming_heads(heads, "tiny", [(0, 1)])
    streaming = ("memory=headwise", f"memory.streaming_heads={heads}", "memory.sink_tokens=1")
    settings = {
        "exact": ("memory=headwise",),
        "int8": ("memory=quantized_kv",),
        "seen": (*streaming, "memory.window_tokens=2"),
        "all seen": (*streaming, "memory.window_tokens=200"),
    }
    approximate = {}
    for number, (name, overrides) in enumerate(settings.items()):
        summary = run(composed(place, *overrides, f"run.name=r{number}", "dataset.limit=2"))
        approximate[name] = summary["approximate"]
        own = summary["prompt_tokens"] + summary["generated_tokens"]
    # prompts have six tokens, answers three; the first three tokens of a text see all before them
    assert approximate == {
        "exact": {},
        "int8": {"tokens_with_kv_in_8_bits": own},
        "seen": {"tokens_for_which_streaming_heads_saw_a_part": 2 * (6 + 3 - 3)},
        "all seen": {},
    }
