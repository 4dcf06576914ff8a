"""Models that think, on a run's page."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.runs.problem_loop import run
from tests.experiments.pages.test_view import written
from tests.experiments.test_thinking_models import CLOSING
from tests.helpers.runs import ROWS, composed, save_rows
from tests.helpers.thinking import save_qwen3


def test_a_thinking_model_goes_through_a_run_and_the_view_page(tmp_path: Path) -> None:
    save_qwen3(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", ROWS[:2])
    search = ("search=best_of_n", "search.n=3", "search.max_tokens=12", "search.thinking_tokens=16")
    run(composed(tmp_path, "verifier=confidence", search=search))
    folder = tmp_path / "outputs" / "r"
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert len(records) == 2 and all(record["error"] is None for record in records)
    for record in records:
        usage, branches = record["usage"], record["branches"]
        assert 0 < usage["thinking_tokens"] <= 3 * 16 < usage["generated_tokens"] <= 3 * 28
        assert usage["thinking_tokens"] == sum(b["thinking_tokens"] for b in branches)
        assert any(CLOSING in branch["text"] for branch in branches)
        for branch in branches:
            assert branch["thought"] and branch["text"].startswith(branch["thought"])
    _, data = written(folder)
    for problem in data["problems"]:
        assert problem["usage"]["thinking_tokens"] > 0
        for node in problem["nodes"][1:]:
            assert node["thought"] and node["text"].startswith(node["thought"])
            assert "Final Answer" not in node["thought"]
