"""A run's folder: records that survive whatever ends the run."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.runs.records import RunFolder
from experiments.runs.schema import Config
from experiments.runs.summary import summarise, tokens_past
from tests.helpers.records import candidate, made_up
from ttc import InvalidInput, TTCError


def config(tmp_path: Path, **run: Any) -> Any:
    made = OmegaConf.structured(Config())
    made.model.name, made.dataset.name = "m", "d"
    made.run.name, made.run.output_dir = "r", str(tmp_path)
    return OmegaConf.merge(made, {"run": run})


def test_records_survive_a_torn_line(tmp_path: Path) -> None:
    with RunFolder(config(tmp_path), ("id",)) as folder:
        for i in range(3):
            folder.append({"id": str(i), "value": "é" * 50})
    file = tmp_path / "r" / "records.jsonl"
    whole = file.read_bytes()
    for cut in (1, 20, 70):
        file.write_bytes(whole[:-cut])
        with RunFolder(config(tmp_path), ("id",)) as folder:
            assert list(folder.records) == ["0", "1"]
            folder.append({"id": "2", "value": "é" * 50})
        assert file.read_bytes() == whole
    file.write_bytes(b"{broken\n" + whole)
    with pytest.raises(InvalidInput, match="line 1 is damaged"):
        RunFolder(config(tmp_path), ("id",))


def test_a_changed_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    with RunFolder(config(tmp_path), ("id",)) as folder:
        folder.append({"id": "0"})
    with pytest.raises(InvalidInput, match=r"run\.seed: 0 -> 5"):
        RunFolder(config(tmp_path, seed=5), ("id",))
    RunFolder(config(tmp_path, show_questions=True), ("id",)).close()
    RunFolder(config(tmp_path, batch=2), ("id",)).close()


def test_a_run_that_never_started_leaves_its_name_free(tmp_path: Path) -> None:
    RunFolder(config(tmp_path), ("id",)).close()
    with RunFolder(config(tmp_path, seed=5), ("id",)) as folder:
        folder.append({"id": "0"})
    with pytest.raises(InvalidInput, match=r"run\.seed: 5 -> 0"):
        RunFolder(config(tmp_path), ("id",))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TTCError, match=r"cannot write to .*file/r"):
        RunFolder(config(tmp_path, output_dir=str(tmp_path / "file")), ("id",))


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    with RunFolder(config(tmp_path), ("id",)), pytest.raises(InvalidInput, match="in use"):
        RunFolder(config(tmp_path), ("id",))


@pytest.mark.parametrize(
    ("code", "way"), [(errno.ENOSPC, "make room"), (errno.EROFS, "make the folder writable")]
)
def test_a_disk_that_takes_no_more_keeps_what_is_finished(
    code: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with RunFolder(config(tmp_path), ("id",)) as folder:
        folder.append({"id": "0"})
        monkeypatch.setattr(os, "fsync", refused)
        with pytest.raises(TTCError, match=rf"{os.strerror(code)}.*1 record\): {way}, or give"):
            folder.append({"id": "1"})
        monkeypatch.undo()
    with RunFolder(config(tmp_path), ("id",)) as folder:
        assert "0" in folder.records


def test_a_record_counts_whose_writing_was_interrupted_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with RunFolder(config(tmp_path), ("id",)) as folder:
        assert folder.count_written() == 0
        folder.append({"id": "0"})
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.append({"id": "1"})
        assert folder.count_written() == 2


def test_forgotten_records_are_gone_from_the_file_too(tmp_path: Path) -> None:
    with RunFolder(config(tmp_path), ("id",)) as folder:
        for i in range(3):
            folder.append({"id": str(i), "value": "é"})
        folder.forget(["1", "7"])
        assert list(folder.records) == ["0", "2"] and folder.count_written() == 3  # for now
        folder.append({"id": "1", "value": "new"})
    with RunFolder(config(tmp_path), ("id",)) as folder:
        left = [(r["id"], r["value"]) for r in folder.records.values()]
        assert left == [("0", "é"), ("2", "é"), ("1", "new")]


def solved(number: int, text: str, answers: Sequence[str | None]) -> dict[str, Any]:
    branches = [candidate(i, a, a == "4", text=text) for i, a in enumerate(answers)]
    tree = [
        {"id": 0, "parent": None, "start": 0, "own_tokens": 5, "text": text},
        {"id": 1, "parent": 0, "start": 5, "own_tokens": number, "text": ""},
    ]
    return made_up(*branches, id=str(number), question=text, gold="4", tree=tree)


def test_a_run_adds_up_what_it_keeps_as_it_would_the_whole_records(tmp_path: Path) -> None:
    program = "def f(x):\n    return x\n" * 20
    rows = [["4", "4", "5"], [program, program + "#", None], [None, program, program], ["4"] * 3]
    whole = [solved(i, "text", row) for i, row in enumerate(rows)]
    whole[3]["branches"][0] |= {"vote": "four", "finish_reason": "context"}
    with RunFolder(config(tmp_path)) as folder:
        folder.append(*whole)
        written = list(folder.records.values())
    with RunFolder(config(tmp_path)) as folder:
        read = list(folder.records.values())
    for records in (written, read):
        assert summarise(records) == summarise(whole)
        past = [sum(tokens_past(3, node) for node in record["tree"]) for record in records]
        assert past == [2 + number for number in range(4)]


def test_a_run_keeps_no_texts_in_memory(tmp_path: Path) -> None:
    text = "é" * 100_000
    with RunFolder(config(tmp_path)) as folder:
        folder.append(solved(0, text, ["4"]))
        tracemalloc.start()
        for number in range(1, 40):
            folder.append(solved(number, text + str(number), ["4", "5"]))
        held = tracemalloc.get_traced_memory()[0]
    with RunFolder(config(tmp_path)) as folder:
        read, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(folder.records) == 40
    size = (tmp_path / "r" / "records.jsonl").stat().st_size
    assert size > 20e6
    assert held < size / 50 and read < size / 50 and most < size / 5
