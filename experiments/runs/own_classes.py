"""Searches, verifiers and readers of the user's own, by their dotted paths: `search._target_=my_search.UntilSure`."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.runs.run_name import is_own
from experiments.runs.schema import schema_of
from search import Search
from ttc.errors import InvalidInput


def find(path: str, key: str) -> Any:
    """What the dotted `path` names, which may lie in the folder of the command. key: the setting that gave it."""
    module, _, name = path.rpartition(".")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"{key}={path} cannot be imported: {error}; give the name of a file in this folder without its .py, a dot, "
            "and a name that the file defines"
        ) from error


def with_own_classes(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration, in which a search or a verifier of the user's own has its own settings.

    A `_target_` on the command line leaves the settings of the choice whose class it replaces. They give way to the
    defaults of the user's class and to what the command line sets. overrides: those of the command line.
    Raises InvalidInput for a class that cannot be imported or is no search or verifier, and for a wrong setting.
    """
    config = config.copy()
    OmegaConf.set_struct(config, False)
    for group in ("search", "verifier"):
        if not is_own(path := config[group].get("_target_")):
            continue
        key = f"{group}._target_"
        own = find(path, key)
        if group == "search" and not (inspect.isclass(own) and issubclass(own, Search)):
            raise InvalidInput(f"{key}={path} is no search; make it a class that inherits from search.Search")
        if group == "verifier" and not callable(getattr(own, "rate", None)):
            raise InvalidInput(f"{key}={path} is no verifier; make it a class with a method rate")
        named = [o.partition("=")[0].lstrip("+").removeprefix(f"{group}.") for o in overrides if f"{group}." in o]
        given = {name: config[group][name] for name in named if name in config[group]}
        try:
            if is_dataclass(own):
                config[group] = OmegaConf.merge(OmegaConf.structured(schema_of(own, path)), given)
            else:
                inspect.signature(own).bind(**{name: value for name, value in given.items() if name != "_target_"})
                config[group] = given
        except (OmegaConfBaseException, TypeError) as error:
            raise InvalidInput(f"{key}={path}: {str(error).splitlines()[0]}") from error
    OmegaConf.set_struct(config, True)
    return config


def code_fingerprint(config: DictConfig) -> dict[str, str]:
    """A hash of the file of each class of the user's own."""
    hashes = {}
    for group in ("search", "verifier"):
        if is_own(path := config[group].get("_target_")):
            file = inspect.getfile(find(path, f"{group}._target_"))
            hashes[path] = f"hash {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]}"
    return hashes
