"""Parts: folders that can be deleted, found by what they handle.

A part has a file `part.py` that lists what it handles, by the kind of thing and its name:

    HANDLES = {"speculation": {"prompt_lookup": "ttc.speculation.prompt_lookup:PromptLookup"}}

The core asks for a name, or for all of a kind, and imports no part. The list is read without being
run, so that a part costs nothing before it is used. `parts.toml` beside this file names the folders
of each part: errors tell from it which part is missing, and `make without PART=NAME` deletes them.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ttc.errors import MissingPart

PACKAGES = ("ttc", "search", "verifiers", "experiments")
TABLE = Path(__file__).with_suffix(".toml")


@cache
def handled() -> Mapping[str, Mapping[str, str]]:
    """For each kind the names that parts handle, and where: "module:object"."""
    kinds: dict[str, dict[str, str]] = {}
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for file in sorted(Path(folder).rglob("part.py")):
                for kind, places in _listed(file).items():
                    kinds.setdefault(kind, {}).update(places)
    return kinds


def _listed(file: Path) -> dict[str, dict[str, str]]:
    for line in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "HANDLES":
            listed: dict[str, dict[str, str]] = ast.literal_eval(line.value)
            return listed
    return {}


def handler(kind: str, name: str) -> Any:
    """The object that handles this. Raises MissingPart where no part does."""
    value = find(kind, name)
    if value is None:
        raise missing(f"{kind}={name}")
    return value


def find(kind: str, name: str) -> Any:
    """The object that handles this; None where no part does, and none is needed."""
    place = handled().get(kind, {}).get(name)
    return None if place is None else load(place)


def handlers(kind: str) -> dict[str, Any]:
    """All objects that handle something of this kind, by its name."""
    return {name: load(place) for name, place in handled().get(kind, {}).items()}


def load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


# ---------------------------------------------------------------- what is missing


@cache
def table() -> dict[str, dict[str, list[str]]]:
    """Of each part its `paths`, what it `handles`, and the other parts that it `needs`."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def missing(name: str, path: str = "") -> MissingPart:
    """The error for something that a part handles, or a file of a part, that is not here."""
    for part, entry in table().items():
        folders = entry["paths"]
        if name in entry["handles"] or any(path.startswith(folder) for folder in folders if path):
            return MissingPart(
                f"{name} needs the part {part}, which is not installed; put its folder "
                f"{folders[0]} back, or install ttc-tree again" + _extra(entry)
            )
    return MissingPart(f"{name} is handled by no part that is installed")


def _extra(entry: Mapping[str, Any]) -> str:
    extra = entry.get("extra")
    return f" with its extra: pip install 'ttc-tree[{extra}]'" if extra else ""


def missing_for(setting: str) -> str | None:
    """What to tell of a setting, as "speculation=prompt_lookup", if it is one of a part, or a file
    of `conf` that went with its part."""
    file = f"conf/{setting.replace('=', '/')}.yaml"
    for entry in table().values():
        gone = not (TABLE.parents[1] / entry["paths"][0]).exists()
        if setting in entry["handles"] or (gone and file.startswith(tuple(entry["paths"]))):
            return str(missing(setting, file))
    return None
