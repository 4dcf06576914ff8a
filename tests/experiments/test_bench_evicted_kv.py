"""The benchmark of dropped KV, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.lab.bench import evicted_kv
from tests.helpers.benches import save_tiny_model


def test_what_is_lost_along_a_text_is_measured_where_something_was_dropped(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path)
    row = evicted_kv.along_texts(model, ["docs/glossary.md"], 400, 40)
    # it is cut down to 40 of 192 own tokens first, and then of 168 two times
    assert row["evicted_tokens"] >= 192 - 40 and row["scored_tokens"] < 400 - 64 - 128
    assert 0 < row["kl"] < 1 and 0 <= row["changed"] < 1 and row["kv_share"] < 0.7
    table = evicted_kv.table({"texts": [row], "answers": []})
    assert "| 40 | 400 |" in table


@pytest.mark.slow
def test_answers_with_less_kv_than_they_have_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evicted_kv, "ANSWER_BUDGETS", (16,))
    whole, small = evicted_kv.answers(save_tiny_model(tmp_path), 4)
    assert whole["evicted_tokens"] == whole["texts_changed"] == whole["answers_changed"] == 0
    assert small["evicted_tokens"] > 10 and small["texts_changed"] > 0
