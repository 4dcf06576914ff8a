"""Folders of runs that were damaged in any place: every command either works or names the file in
one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.eval.compare.command import compare
from experiments.eval.compare.command import parsed as compare_words
from experiments.eval.export.command import export
from experiments.eval.export.command import parsed as export_words
from experiments.eval.merge.merging import merge
from experiments.eval.select import parsed as select_words
from experiments.eval.select import report
from experiments.runs.problem_loop import run
from experiments.runs.reading import read_settings
from experiments.runs.records import RunFolder, run_folder
from tests.helpers.runs import ROWS, composed, save_model, save_rows
from tests.helpers.tiers import examples
from ttc import InvalidInput, TTCError

BEAMS = ("search=beam_search", "search.beam_size=2", "search.beam_width=2", "search.step_tokens=2")
EXAMPLES = 25
"""Of each command; the fault that is tried differs from command to command."""
FILES = ("config.yaml", "records.jsonl", "summary.json", "fingerprint.json", "provenance.json")


def test_settings_that_stand_for_more_than_any_memory_holds_are_refused(tmp_path: Path) -> None:
    """A YAML bomb: each line doubles the one before it, ten times over."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (tmp_path / "config.yaml").write_text("\n".join(["model: {name: m}", *lines]))
    with pytest.raises(InvalidInput, match=r"config\.yaml holds an alias"):
        read_settings(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("a: " + "[" * 9000)
    with pytest.raises(InvalidInput, match=r"config\.yaml is damaged: .* 100 deep"):
        read_settings(tmp_path / "config.yaml")


def test_a_file_where_a_runs_folder_would_be_is_named(tmp_path: Path) -> None:
    config = composed(tmp_path)
    folder = run_folder(config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file")
    with pytest.raises(TTCError, match="a file has the name of a folder on this path; move it"):
        RunFolder(config)


def test_records_of_a_folder_that_cannot_be_locked_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(tmp_path)
    record = {"id": "a", "correct": True, "error": None, "branches": [], "usage": {}}
    folder = run_folder(config)
    folder.mkdir(parents=True)
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n")

    def read_only(*_: Any, **__: Any) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("filelock.FileLock.acquire", read_only)
    with pytest.raises(TTCError, match=r"what was written so far is safe \(1 record\)"):
        RunFolder(config)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_shards(tmp_path_factory.mktemp("runs"))


def two_shards(place: Path) -> Path:
    """The two shards of a run with trees and tokens, beside their model."""
    save_model(place / "model")
    save_rows(place / "rows.jsonl", ROWS)
    for part in ("1/2", "2/2"):
        words = ("search.max_steps=2", "verifier=confidence", "run.record_tokens=true")
        run(composed(place, *words, f"run.shard={part}", search=BEAMS))
    return place / "outputs"


COMMANDS: dict[str, Callable[[Path], Any]] = {
    "compare": lambda f: compare(compare_words([str(f), "--json", str(f / "j")])),
    "select": lambda f: report(select_words([str(f)])),
    "export, jsonl": lambda f: export(export_words([str(f)])),
    "export, steps": lambda f: export(export_words([str(f), "--format", "trl"])),
    "merge": lambda f: merge(f.parent / "r", [f, f.parent / "r-shard2of2"]),
}

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**63, 10**400, -(10**30), 1e300, float("nan"), float("inf")]),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.lists(st.integers(0, 9), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value within a value."""
    yield way
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*way, key))


@st.composite
def damage(draw: st.DrawFn, value: Any) -> Any:
    """The value with one of its parts lost, or of any other type."""
    value = json.loads(json.dumps(value))
    way = draw(st.sampled_from(sorted(places(value), key=lambda way: (len(way), str(way)))))
    if not way:
        return draw(JUNK)
    owner = value
    for key in way[:-1]:
        owner = owner[key]
    if draw(st.booleans()):
        owner[way[-1]] = draw(JUNK)
    else:
        del owner[way[-1]]
    return value


@st.composite
def damaged_file(draw: st.DrawFn, folder: Path) -> tuple[str, bytes | None]:
    """A file of a folder, and its bytes after the damage; None for a file that is lost."""
    name = draw(st.sampled_from(FILES))
    data = (folder / name).read_bytes()
    kind = draw(st.sampled_from(["lost", "cut", "junk", "type", "type", "type", "type"]))
    if kind == "lost":
        return name, None
    if kind == "cut":
        return name, data[: draw(st.integers(0, len(data)))]
    if kind == "junk":
        at = draw(st.integers(0, len(data)))
        return name, data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at:]
    if name == "config.yaml":
        return name, yaml.safe_dump(draw(damage(yaml.safe_load(data)))).encode()
    if name != "records.jsonl":
        return name, json.dumps(draw(damage(json.loads(data)))).encode()
    lines = data.splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = json.dumps(draw(damage(json.loads(lines[at])))).encode()
    return name, b"".join(line + b"\n" for line in lines)


@pytest.mark.few
@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_run_is_named_in_a_line(
    shards: Path, command: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    works_or_names_the_folder(COMMANDS[command], shards, tmp_path_factory)


def works_or_names_the_folder(
    command: Callable[[Path], Any], shards: Path, places: pytest.TempPathFactory
) -> None:
    @settings(max_examples=examples(EXAMPLES), database=None)
    @given(st.data())
    def damaged(data: st.DataObject) -> None:
        folder = places.mktemp("d") / "r-shard1of2"
        for shard in sorted(shards.glob("r-shard*")):
            shutil.copytree(shard, folder.with_name(shard.name))
        name, content = data.draw(damaged_file(folder))
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
        try:
            command(folder)
        except InvalidInput as error:
            first = str(error).splitlines()[0]
            assert str(folder) in first or "r-shard" in first
            assert "damaged" not in first or "\n" not in str(error)
        finally:
            shutil.rmtree(folder.parent)

    damaged()
