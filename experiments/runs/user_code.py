"""The user's own classes and functions that a configuration names: imported, checked, and
hashed."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments.cli.removed import removal
from experiments.runs.config_values import as_dict
from experiments.runs.run_name import is_own
from experiments.runs.schema import GROUPS
from ttc.errors import InvalidInput
from ttc.origin import error_text, origin

OF_DATA = ("dataset.reader", "dataset.extract", "dataset.grader")
"""Settings that may hold the path of a function; a reader without a dot is one of ours."""


def find(path: str, key: str) -> Any:
    """What a dotted path names, in the folder of the command too. key: the setting that gave it."""
    module, _, name = path.rpartition(".")
    group_name = key.partition(".")[0]
    if gone := removal(group_name, path):
        raise InvalidInput(gone)
    group = GROUPS.get(group_name)
    others = "" if group is None else f", or a choice: {', '.join(group.choices)}"
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return getattr(import_module(module), name)
    except (Exception, SystemExit) as error:
        if origin(error) is not None:
            raise InvalidInput(f"{key}={path} cannot be imported: {error_text(error)}") from error
        if not isinstance(error, ImportError | AttributeError | ValueError):
            raise
        raise InvalidInput(
            f"{key}={path} cannot be imported: {error}; give the name of a file in this folder "
            f"without its .py, a dot, and a name that the file defines{others}"
        ) from error


def code_fingerprint(config: DictConfig) -> dict[str, str]:
    """A hash of the code of every class and function of the user's, by its path."""
    hashes = {}
    for key, path in user_paths(config).items():
        find(path, key)
        digest = hashlib.sha256()
        for file in code_files(path.rpartition(".")[0]):
            digest.update(file.read_bytes())
        hashes[path] = f"hash {digest.hexdigest()[:16]}"
    return hashes


def user_paths(config: DictConfig) -> dict[str, str]:
    return {
        key: value
        for key, value in _texts(as_dict(config), "")
        if (key.rpartition(".")[2] == "_target_" and is_own(value))
        or (key in OF_DATA and "." in value)
    }


def _texts(node: Any, key: str) -> Iterator[tuple[str, str]]:
    """Every text of a nested configuration, with its dotted key."""
    if isinstance(node, str):
        yield key, node
    elif isinstance(node, dict):
        for name, inner in node.items():
            yield from _texts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for place, inner in enumerate(node):
            yield from _texts(inner, f"{key}.{place}")


def code_files(module: str) -> list[Path]:
    """The file of an imported module, and those of the user's that it imports, directly or through
    each other: from its folder and folders in it, or from its installed package. A module that is
    not written in Python has none."""
    name = getattr(sys.modules[module], "__file__", None)
    if name is None or not name.endswith(".py"):
        return []
    first = Path(name).resolve()
    root = first.parents[module.count(".") + (first.name == "__init__.py")]
    installed = "site-packages" in root.parts
    package = module.partition(".")[0]
    files = {first}
    left = [first]
    while left:
        paths = [name.split(".") for name in _imported(left.pop(), root) if is_own(name)]
        names = [".".join(path[:count]) for path in paths for count in range(1, len(path) + 1)]
        if installed:
            names = [name for name in names if name.partition(".")[0] == package]
        new = {file for name in names if (file := _file_of(name, root)) is not None} - files
        files |= new
        left += sorted(new)
    return [first, *sorted(files - {first})]


def _imported(file: Path, root: Path) -> Iterator[str]:
    """The dotted names that a file's imports may mean, as seen from `root`."""
    package = file.parent.relative_to(root).parts
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _file_of(module: str, root: Path) -> Path | None:
    place = root.joinpath(*module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if module and file.is_file()), None)
