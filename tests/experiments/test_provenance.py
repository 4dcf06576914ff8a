"""Figures name the code that made them, and the README says which are older than the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.runs.provenance import code_hash, kernel_text, provenance
from tests.helpers.measured_code import importable_module, written


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return importable_module(tmp_path, monkeypatch)


def test_comments_docstrings_and_layout_change_no_hash_and_code_does(module: Path) -> None:
    first = written(module, '"""A."""\n\ndef f(x):\n    """B."""\n    return x + 1  # one\n')
    assert written(module, "def f(x):\n\n    return (x +\n        1)\n") == first
    assert written(module, "def f(x):\n    return x + 2\n") != first


@pytest.mark.slow
def test_a_change_of_a_kernel_is_seen_and_one_of_its_comments_is_not() -> None:
    text = "int one() {\n  return 1;  // the first\n}\n"
    assert kernel_text(text) == kernel_text("// a file\nint one() { return 1; }\n")
    assert kernel_text(text) != kernel_text(text.replace("1;", "2;"))
    code = provenance("a command", model="a model")["code"]
    assert {"ttc/vectors.h", "ttc/attention/cpu_kernel.cpp"} <= code.keys()
    assert code["ttc/vectors.h"] == code_hash("ttc/vectors.h") != code_hash("ttc/gone.h") == ""


@pytest.mark.slow
def test_a_record_names_command_machine_versions_commit_and_code() -> None:
    import ttc.errors  # noqa: F401

    made = provenance("a command", model="a model, random weights")
    assert made["command"] == "a command" and made["simulated"] == "nothing"
    known = {"cpu", "instructions", "threads", "python", "torch", "transformers"}
    assert known <= made["machine"].keys()
    assert made["code"]["ttc.errors"] == code_hash("ttc.errors")
    assert all(code_hash(name) == known for name, known in made["code"].items())


def test_of_absolute_paths_in_a_command_their_last_part_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("experiments.runs.provenance.code_hash", str)  # of all modules: slow
    command = "bench long --peer /home/me/env/bin/python --data=/data/a.jsonl,/b.jsonl out/c.json"
    made = provenance(command, model="a model")
    assert made["code"]["ttc.errors"] == "ttc.errors"
    assert made["command"] == "bench long --peer python --data=a.jsonl,b.jsonl out/c.json"
