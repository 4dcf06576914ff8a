"""Public names that are loaded when they are first used, so that importing a package costs nothing.

A package lists them once, as the imports that type checkers see:

    if TYPE_CHECKING:
        from search.beam_search import BeamSearch as BeamSearch

    __getattr__, __dir__, __all__ = lazy_names(__name__)

Classes of the folders below that say in their docstrings where to use them need no such line, but
for type checkers.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FOLDERS = {
    "search": "search",
    "verifier": "verifiers",
    "memory": "ttc.residency",
    "backend": "ttc.remote",
}
"""The folder of each kind of thing that is chosen by the name of its file."""
WHEN = "Use it where"


def public_names(package: str) -> dict[str, str]:
    """The names that a package lists, and the module that defines each. Nothing of it is
    imported. Names of parts that are not there are left out."""
    root = _folder(package).parent
    listed = listed_names(package)
    return {name: home for name, home in listed.items() if _file(root, home).exists()}


def public_classes(folder: str) -> dict[str, str]:
    """Where the classes are that say where to use them, "module:class", by the names of their
    files."""
    classes = {}
    for place in getattr(find_spec(folder), "submodule_search_locations", None) or ():
        for file in sorted(Path(place).glob("*.py")):
            before, use, _ = file.read_text(encoding="utf-8").partition(f"    {WHEN}: ")
            names = re.findall(r"^class (\w+)", before, re.MULTILINE)
            if use and names:
                classes[file.stem.removesuffix("_verifier")] = f"{folder}.{file.stem}:{names[-1]}"
    return classes


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _file(root: Path, module: str) -> Path:
    return (root / module.replace(".", "/")).with_suffix(".py")


def listed_names(package: str) -> dict[str, str]:
    """All names that a package lists, and the module of each."""
    homes: dict[str, str] = {}
    file = _folder(package) / "__init__.py"
    for block in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and line.module is not None:
                    homes |= {name.name: line.module for name in line.names}
    return homes


def _in_folders(package: str) -> dict[str, str]:
    folders = [folder for folder in FOLDERS.values() if folder.partition(".")[0] == package]
    places = [place for folder in folders for place in public_classes(folder).values()]
    return {name: module for module, _, name in (place.partition(":") for place in places)}


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__` and `__dir__` (PEP 562) and `__all__` of a package. A name is kept there after
    its first use."""
    homes = public_names(package)

    def load(name: str) -> Any:
        if name not in homes:
            homes.update(_in_folders(package))
        if name not in homes and (home := listed_names(package).get(name)) is not None:
            from ttc.parts import missing

            raise missing(f"{package}.{name}", home.replace(".", "/"))
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names, list(homes)
