"""Half of a surrogate pair in a run's records is read as U+FFFD by whatever writes files of
them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.eval.export import command as exports
from tests.helpers.run_files import record, save

HALVES = ("\ud83d", "\ude00", "\udcff\udcfe", "a\ud800b")


def broken(value: Any, half: str) -> Any:
    """With a half at the end of each text that a model or a data set may give."""
    if isinstance(value, dict):
        return {
            name: value[name] + half
            if name in ("text", "answer", "question", "gold", "prompt") and value[name]
            else broken(value[name], half)
            for name in value
        }
    return [broken(part, half) for part in value] if isinstance(value, list) else value


@pytest.fixture(params=HALVES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    records = [record("p", True), record("q", False)]
    return save(tmp_path, [broken(one, request.param) for one in records])


@pytest.mark.parametrize("kind", exports.TYPES)
def test_an_export_of_halves_can_be_written(folder: Path, kind: str) -> None:
    exports.export(exports.parsed([str(folder), "--format", "trl", "--type", kind]))
    lines = (folder / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines and all(isinstance(json.loads(line), dict) for line in lines)
    assert "\ufffd" in json.dumps(list(map(json.loads, lines)), ensure_ascii=False)
