"""Parts can be deleted: nothing imports them but what needs them, and all else works without."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import ttc
from experiments.cli.refusals import explained
from experiments.runs.hydra_command import composed
from tests.helpers import parts
from ttc.errors import MissingPart
from ttc.lazy import public_names
from ttc.parts import PACKAGES, handled, handler, missing, missing_for, table

HERE = [part for part, entry in table().items() if (parts.ROOT / entry["paths"][0]).exists()]
"""The parts that were not deleted."""
PARTS = pytest.mark.parametrize("part", HERE)


def listed() -> Iterator[tuple[str, str, str]]:
    for kind, places in handled().items():
        for name, place in places.items():
            yield kind, name, place


def test_the_table_says_what_the_parts_handle() -> None:
    told = {handled: part for part in HERE for handled in table()[part]["handles"]}
    assert sorted(told) == sorted(f"{kind}={name}" for kind, name, _ in listed())
    for kind, name, place in listed():
        own = [parts.module(Path(path)) for path in table()[told[f"{kind}={name}"]]["paths"]]
        inside = any(place.startswith((f"{module}.", f"{module}:")) for module in own)
        assert inside, f"{kind}={name} is handled outside its part"
        assert handler(kind, name) is not None


@PARTS
def test_a_part_has_its_files_and_the_parts_that_it_needs(part: str) -> None:
    entry, gone = table()[part], parts.paths(set(table()) - set(HERE))
    for path in entry["paths"]:
        assert (parts.ROOT / path).exists() or parts.is_in(Path(path), gone), path
    assert (parts.ROOT / entry["paths"][0] / "part.py").exists()
    assert set(entry.get("needs", ())) <= set(table()) - {part}


@cache
def names() -> dict[str, str]:
    """The module of each public name of a package."""
    return {
        f"{package}.{name}": home
        for package in ("ttc", "search", "verifiers")
        for name, home in public_names(package).items()
    }


@cache
def imported(file: Path) -> list[str]:
    return [names().get(name, name) for name in parts.imports(file)]


LISTS = [Path(package, "__init__.py") for package in PACKAGES]
"""The files that list the public names, for type checkers alone."""


@pytest.mark.few
@PARTS
def test_nothing_imports_a_part_but_what_is_deleted_with_it(part: str) -> None:
    own = [Path(path) for path in parts.paths({part})]
    modules = tuple(parts.module(path) for path in own)
    deleted = parts.paths(parts.users(part))
    for file in parts.sources(*PACKAGES, "tests", "examples"):
        if parts.is_in(file, deleted) or file in LISTS:
            continue
        for name in imported(file):
            inside = any(name == m or name.startswith(f"{m}.") for m in modules)
            assert not inside, f"{file} imports {name} of the part {part}"


@pytest.fixture(scope="module")
def warm() -> Iterator[parts.Warm]:
    process = parts.Warm()
    yield process
    process.close()


@pytest.mark.slow
@PARTS
def test_all_else_works_without_a_part(part: str, warm: parts.Warm) -> None:
    assert parts.tried(part, parts.checks(), warm) == {}


def test_a_part_is_deleted_in_a_copy_alone(tmp_path: Path) -> None:
    parts.copied(tmp_path)
    parts.delete("speculation", tmp_path)
    assert not (tmp_path / "ttc/speculation").exists()
    assert (tmp_path / "ttc/engine.py").exists() and (parts.ROOT / "ttc/speculation").exists()


# ---------------------------------------------------------------- what is told of a missing part


@pytest.fixture
def without_speculation(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {kind: of for kind, of in handled().items() if kind not in ("speculation", "group")}
    monkeypatch.setattr("ttc.parts.handled", lambda: kinds)


def test_what_only_a_missing_part_handles_is_refused_by_its_name(without_speculation: None) -> None:
    with pytest.raises(MissingPart, match="speculation=prompt_lookup needs the part speculation"):
        handler("speculation", "prompt_lookup")
    with pytest.raises(MissingPart, match="fuel=coal is handled by no part"):
        handler("fuel", "coal")


def test_a_public_name_of_a_missing_part_names_it() -> None:
    error = missing("ttc.PromptLookup", "ttc/speculation/prompt_lookup")
    assert isinstance(error, ttc.InvalidInput) and "the part speculation" in str(error)


def test_a_setting_of_a_missing_part_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the part speculation" in str(missing_for("speculation=draft_model"))
    assert missing_for("speculation=guesses") is None
    monkeypatch.setattr("experiments.cli.refusals.missing_for", lambda setting: f"no {setting}")
    with pytest.raises(Exception) as raised:
        composed(["speculation=other"])
    assert explained(raised.value) == "no speculation=other"


@pytest.mark.parametrize("name", handled().get("command", ()))
def test_the_command_of_a_missing_part_ends_with_a_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ttc.parts.handled", dict)
    with pytest.raises(SystemExit, match=f"^error: command={name} needs the part"):
        import_module(f"experiments.{name}").main()


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("dataset=code", "programs"),
        ("verifier=codet", "programs"),
        ("tools=calculator", "tools"),
        ("backend=openai", "remote"),
        ("experiment=published/math500", "recipes"),
    ],
)
def test_every_kind_of_setting_names_its_part(
    setting: str, part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ttc.parts.TABLE", tmp_path / "ttc" / "parts.toml")  # no part is there
    assert f"{setting} needs the part {part}," in str(missing_for(setting))
    assert missing_for(f"{setting.partition('=')[0]}=nope") is None


def test_an_extra_has_the_name_of_its_part() -> None:
    extras = tomllib.loads((parts.ROOT / "pyproject.toml").read_text())["project"]
    for part, entry in table().items():
        if extra := entry.get("extra"):
            assert extra == part and extra in extras["optional-dependencies"]
            assert f"pip install 'ttc-tree[{extra}]'" in str(missing(entry["handles"][0]))
