"""Classes of the user's own as choices, by their dotted paths: `search=my_search.UntilSure`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import field, make_dataclass
from functools import partial
from importlib import import_module
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.runs.overrides import read, values
from experiments.runs.run_name import is_own
from experiments.runs.schema import GROUPS, plain_hint, settings
from experiments.runs.user_code import find, user_paths
from ttc.errors import InvalidInput


def as_choices(words: Sequence[str]) -> list[str]:
    """The words of a command line, in which each class that is named by its path is a choice of its
    group.

    The class becomes known to Hydra as a choice, so that its settings are set, checked and swept
    over as others are. Raises InvalidInput for a class that cannot be imported or is nothing of its
    group.
    """
    return list(map(_as_choice, words))


def _as_choice(word: str) -> str:
    if (override := read(word)) is None or override.is_delete():
        return word
    group, _, setting = override.key_or_group.partition(".")
    if group not in GROUPS or setting not in ("", "_target_"):
        return word
    names = values(override)
    if not any(isinstance(name, str) and "." in name for name in names):
        return word
    return f"{group}={','.join(_choice(group, str(name)) for name in names)}"


def _choice(group: str, path: str) -> str:
    """The name of the choice that a class is; a user's class becomes one by its path."""
    if "." not in path:
        return path
    target = find(path, group)
    for name, choice in GROUPS[group].choices.items():
        if target is choice:
            return name
    _check_part(group, path, target)
    ConfigStore.instance().store(group=group, name=path, node=settings_of(target, path))
    return path


def _check_part(group: str, path: str, target: Any) -> None:
    base = GROUPS[group].base
    if base is None:
        if not callable(getattr(target, "rate", None)):
            raise InvalidInput(f"{group}={path} is no {group}; make it a class with a method rate")
    elif not (inspect.isclass(target) and issubclass(target, base)):
        package = base.__module__.partition(".")[0]
        public = getattr(import_module(package), base.__name__, None) is base
        inherited = f"{package if public else base.__module__}.{base.__name__}"
        raise InvalidInput(
            f"{group}={path} is no {group}; make it a class that inherits from {inherited}"
        )


def settings_of(target: Any, path: str) -> type:
    """A configuration class with a class's settings: its fields, or its constructor's parameters,
    if their defaults are plain values."""
    columns: list[Any] = [("_target_", str, field(default=path))]
    for name, hint, default in settings(target):
        for kind in (plain_hint(hint), Any):
            column = (name, kind, field(default_factory=partial(deepcopy, default)))
            try:
                OmegaConf.structured(make_dataclass("Column", [column]))
            except OmegaConfBaseException:
                continue
            columns.append(column)
            break
    return make_dataclass(f"{path.rpartition('.')[2]}Config", columns)


def checked_parts(config: DictConfig) -> DictConfig:
    """The configuration. Raises InvalidInput for a class of the user's own that cannot be imported
    or is nothing of its group."""
    for group in GROUPS:
        if config[group] is None:
            raise InvalidInput(
                f"~{group} leaves a run without what it needs; leave that out, or give {group}=NAME"
            )
        if is_own(path := config[group].get("_target_")):
            _check_part(group, path, find(path, group))
    for key, path in user_paths(config).items():
        find(path, key)
    return config
