"""The default names of runs."""

from __future__ import annotations

import pytest

from experiments.runs.records import MAY_CHANGE
from experiments.runs.run_name import data_label, overrides_suffix


def test_settings_of_a_sweep_have_folders_of_their_own() -> None:
    told = ["search=greedy", "run.seed=3", "dataset.path=/x/y.jsonl", "dataset.limit=3"]
    assert overrides_suffix(told, MAY_CHANGE) == ""
    others = ["search.n=4", "+verifier/exit=ranking", "model.name=a/b"]
    name = "-+verifier_exit=ranking-model.name=a_b-search.n=4"
    assert overrides_suffix(others, ()) == name
    long = [overrides_suffix([f"dataset.instruction={'x' * 200}{i}"], ()) for i in range(2)]
    assert long[0] != long[1] and max(map(len, long)) < 120


@pytest.mark.parametrize(
    ("name", "path", "label"),
    [
        ("sums", None, "sums"),
        ("file", "/x/mine.jsonl", "mine"),
        ("file", None, "file"),
        ("gsm8k", "../y/hard test.jsonl", "gsm8k-hard_test"),
        ("gsm8k", "gsm8k.jsonl", "gsm8k"),
        ("gsm8k", "/x/gsm8k/test.jsonl", "gsm8k-test"),
        ("file", "x/shop/test.jsonl", "shop-test"),
        ("file", "toys/test-00000-of-00001.parquet", "toys-test-00000-of-00001"),
        ("file", "test.jsonl", "test"),
        ("file", "../test.jsonl", "test"),
        ("../a/b", None, ".._a_b"),
    ],
)
def test_runs_on_other_files_have_other_names(name: str, path: str | None, label: str) -> None:
    assert data_label(name, path) == label
