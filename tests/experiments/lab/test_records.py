"""Figures name the code that made them, and the README says which are older than the code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.lab.records import changed_modules, parts
from experiments.lab.report.tables import RESULTS, changes_since, origin
from tests.helpers.measured_code import importable_module, written


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return importable_module(tmp_path, monkeypatch)


def test_a_record_tells_which_modules_changed_or_went(module: Path) -> None:
    record = {
        "code": {
            "measured_code": written(module, "x = 1\n"),
            "measured_code.gone": "0",
            "ttc.gone": "0",
        }
    }
    assert changed_modules(record) == ["measured_code.gone", "ttc.gone"]
    written(module, "x = 2\n")
    assert changed_modules(record) == ["measured_code", "measured_code.gone", "ttc.gone"]


def test_a_table_says_what_its_record_or_each_of_its_records_was_made_on() -> None:
    one = {"machine": {"cpu": "A CPU", "instructions": "AVX2", "threads": 2}, "commit": "abcdef123"}
    assert origin(one) == "Made on: A CPU, AVX2, 2 threads, at abcdef1."
    other = one | {"commit": "123456789"}
    assert origin({"bytes": one, "time": other, "sweep": one}) == (
        "Made on: A CPU, AVX2, 2 threads, at abcdef1; A CPU, AVX2, 2 threads, at 1234567."
    )


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_every_record_names_its_command_machine_versions_and_commit(file: Path) -> None:
    for record in parts(json.loads(file.read_text(encoding="utf-8"))):
        assert "python -m experiments." in str(record.get("command", record.get("commands")))
        assert len(record["commit"]) >= 40 and record["model"] and record["simulated"]
        assert {"torch", "transformers"} <= (record.get("versions") or record["machine"]).keys()


def test_the_readme_says_which_of_its_figures_are_older_than_the_code(module: Path) -> None:
    old = {"commit": "abcdef123", "machine": {}, "code": {"measured_code": "0"}}
    new = {"commit": "123456789", "machine": {}, "code": {}}
    new["code"] = {"measured_code": written(module, "x = 1\n")}
    assert changes_since(new) == ""
    assert changes_since({"AVX2": new, "AMX": old}) == (
        " Some of the code that ran has changed since abcdef1."
    )
