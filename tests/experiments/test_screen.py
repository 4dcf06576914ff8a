"""What a run shows while it works and at its end."""

from __future__ import annotations

import io
import time
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.runs import screen
from experiments.runs.screen import ProgressBar, as_bytes
from experiments.runs.summary import summarise
from experiments.runs.summary_tables import failures, sweep_table, table
from experiments.runs.sweep import job_title


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Engine:
    """Two branches of one problem, which share its meter, and one of another."""

    def __init__(self) -> None:
        first, second = SimpleNamespace(generated_tokens=40), SimpleNamespace(generated_tokens=60)
        self.live = [SimpleNamespace(usage=usage) for usage in (first, first, second)]

    def kv_bytes(self) -> int:
        return 3 << 20


def record(correct: bool, tokens: int = 100) -> dict[str, Any]:
    return {"correct": correct, "usage": {"generated_tokens": tokens}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that stands until it is set."""
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def test_a_plain_line_holds_every_number_and_tokens_never_go_back(clock: Any) -> None:
    records = {str(i): record(correct=i < 3) for i in range(4)}
    out, engine = io.StringIO(), Engine()
    progress = ProgressBar("sums", 20, records, engine, out=out, every_s=5.0)
    progress.solved(400)
    for clock.s in (10.0, 20.0):
        progress.show()
        engine.live = []  # released, and not yet reported
    assert out.getvalue().splitlines() == [
        # 16 problems of 100 tokens are left, 100 of them made, at 50 tokens a second
        "4 of 20 problems, 500 tok, 50.0/s, 75% [30-95], KV 3 MiB, 0:30 left",
        "4 of 20 problems, 500 tok, 25.0/s, 75% [30-95], KV 3 MiB, 1:00 left",
    ]


def test_where_there_is_no_terminal_lines_come_now_and_then(clock: Any) -> None:
    out = io.StringIO()
    progress = ProgressBar("sums", 20, {}, Engine(), out=out, every_s=30.0)
    for clock.s in (0.0, 29.0, 30.0, 31.0, 59.0, 60.0, 61.0):
        progress.show()
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 and all(line.startswith("0 of 20 problems, ") for line in lines)
    assert "\r" not in out.getvalue() and progress.bar is None


def test_lines_of_a_long_run_come_more_and_more_rarely(clock: Any) -> None:
    rhythm = screen.Rhythm(30.0)
    due = [clock.s for clock.s in range(36_000) if rhythm.is_time()]
    assert due[:3] == [30, 60, 90] and len(due) < 70
    assert max(after - before for before, after in pairwise(due)) < 4_000


@pytest.mark.parametrize(
    ("words", "overrides", "title"),
    [
        ("search.n=1,2,4 run.seed=range(0,3)", "search.n=4 run.seed=1", "job 3 of 9: n=4 seed=1"),
        (
            "search=greedy,best_of_n search.max_tokens=choice(40)",
            "search=best_of_n search.max_tokens=40",
            "job 3 of 2: best_of_n",
        ),
        ("search=glob(*)", "search=greedy", "job 3: greedy"),
        ("hydra/sweeper=optuna search.n=1,2", "search.n=2", "job 3: n=2"),
    ],
)
def test_a_job_of_a_sweep_is_called_by_what_is_swept(
    words: str, overrides: str, title: str
) -> None:
    assert job_title(["-m", *words.split()], 2, overrides.split()) == title


def test_the_bar_moves_by_itself_while_a_batch_is_solved() -> None:
    out, engine = Terminal(), Engine()
    records: dict[str, Any] = {}
    with ProgressBar("sums", 20, records, engine, out=out):
        records["a"] = record(correct=True)
        deadline = time.monotonic() + 200
        while "100% [" not in out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "1/20" in out.getvalue() and "100% [21-100] KV 3 MiB" in out.getvalue()


def test_the_bar_fits_80_columns_however_large_its_numbers(clock: Any) -> None:
    out, engine = Terminal(), Engine()
    engine.kv_bytes = lambda: 123 << 30  # type: ignore[method-assign]
    records = {str(i): record(correct=True, tokens=123_456) for i in range(1_000)}
    progress = ProgressBar("a-data-set-{with}-a-very-long-name", 12_345, records, engine, out=out)
    progress.solved(123_456_000)
    clock.s = 40_000.0
    progress.show()
    assert progress.bar is not None
    shown = str(progress.bar)
    progress.bar.close()
    assert len(shown) <= 80 and shown.startswith("a-data-se 1000/12345 |")
    assert shown.endswith(" 123M tok 3.09k/s 100% [100-100] KV 123 GiB 126h03 left")


def test_bytes_are_short() -> None:
    shown = [as_bytes(n) for n in (0, 1023, 3 << 20, 5 << 30)]
    assert shown == ["0 B", "1023 B", "3 MiB", "5.0 GiB"]


def test_failures_are_grouped_and_the_rest_is_counted() -> None:
    assert failures({"problems": 3, "failures": 0, "failure_reasons": []}) == ""
    reasons = [{"reason": f"Error: {letter}", "count": 2} for letter in "abcdefg"]
    text = failures({"problems": 20, "failures": 14, "failure_reasons": reasons})
    assert "14 of 20 problems failed and count as wrong:\n  2 x Error: a\n" in text
    assert "4 x other reasons" in text and "Error: f" not in text
    assert "run.retry_failed=true" in text


SUMMARY = {"accuracy": 0.5, "accuracy_95": [0.25, 0.75], "failures": 1, "seconds": 1234.5}
SUMMARY["generated_tokens_per_problem"] = 12345.0


def test_a_sweep_ends_with_a_line_for_each_job() -> None:
    jobs: list[Any] = [
        (["dataset=sums", "search=greedy"], SUMMARY),
        (["dataset=sums", "search=best_of_n", "search.n=0"], "n=0 must be at least 1"),
    ]
    assert [line.split() for line in sweep_table(jobs).strip().splitlines()[1:]] == [
        ["job", "accuracy", "95%", "interval", "tokens", "failed", "time"],
        ["greedy", "50.0%", "25.0%", "to", "75.0%", "12345", "1", "1234.5", "s"],
        ["best_of_n", "error", "-", "-", "-", "-"],
        [],
        ["best_of_n:", "error:", "n=0", "must", "be", "at", "least", "1"],
    ]


def test_the_table_of_24_jobs_fits_80_columns() -> None:
    shared = ["dataset=math500", "search=best_of_n", "search.max_tokens=2048"]
    pairs = list(product((1, 2, 4, 8, 16, 32), (0.3, 0.6, 0.8, 1)))
    jobs = [([*shared, f"search.n={n}", f"search.temperature={t}"], SUMMARY) for n, t in pairs]
    lines = sweep_table(jobs).splitlines()
    assert max(map(len, lines)) <= 80
    labels = [line.split()[:2] for line in lines if line.startswith("n=")]
    assert labels == [[f"n={n}", f"temperature={t}"] for n, t in pairs]


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        (["n", "max_tokens"], "search.max_tokens"),
        (["max_steps", "step_tokens"], "search.max_steps or search.step_tokens"),
        (["my_own"], "the search's own limits"),
    ],
)
def test_only_limits_that_the_search_has_are_advised(settings: list[str], way: str) -> None:
    summary = summarise([]) | {"truncated_by": {"search": 1}, "seconds": 0.0}
    assert table("r", summary, settings).count(f"more tokens: {way}\n") == 1
