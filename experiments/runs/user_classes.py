"""Classes of the user's own as choices, by their dotted paths: `search=my_search.UntilSure`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence, Set
from copy import deepcopy
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from functools import partial
from importlib import import_module
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.runs.overrides import as_override, read, values
from experiments.runs.run_name import is_own
from experiments.runs.schema import GROUPS, WITHOUT, plain_hint
from experiments.runs.user_code import check_user_code, find
from ttc.checks import Options
from ttc.errors import InvalidInput


def as_choices(words: Sequence[str]) -> list[str]:
    """The words of a command line, in which each class that is named by its path is a choice of its
    group.

    `search=my.UntilSure`, `search._target_=my.UntilSure` and `+search={_target_: my.UntilSure}`
    mean the same. The class becomes known to Hydra as a choice, so that its settings are set,
    checked and swept over as others are. Raises InvalidInput for a class that cannot be imported or
    is nothing of its group.
    """
    read_words = [(word, read(word)) for word in words]
    named = {o.key_or_group for _, o in read_words if o is not None and _names_class(o)}
    groups = {key.partition(".")[0] for key in named}
    chosen: list[str] = []
    for word, o in read_words:
        if o is not None and _names_class(o):
            chosen += _chosen(o)
        elif o is None or o.key_or_group not in groups:
            chosen.append(_without(word, named, words))
        elif o.is_sweep_override():
            raise InvalidInput(
                f"{word} and a class for {o.key_or_group} are both given; give one of them"
            )
    fixed = groups - {
        o.key_or_group.partition(".")[0] for _, o in read_words if o is not None and _is_open(o)
    }
    return [_without_plus(word, fixed) for word in chosen if word]


def _names_class(o: Override) -> bool:
    group, _, setting = o.key_or_group.partition(".")
    if group not in GROUPS or setting not in ("", "_target_") or o.is_delete():
        return False
    paths = [_path(value) for value in values(o)]
    if setting:
        return bool(paths) and all(isinstance(path, str) for path in paths)
    return any(isinstance(path, str) and "." in path for path in paths)


def _is_open(o: Override) -> bool:
    paths = [str(_path(value)) for value in values(o)] if _names_class(o) else []
    return any(_takes_any(find(path, o.key_or_group)) for path in paths if "." in path)


def _path(value: Any) -> Any:
    return value.get("_target_") if isinstance(value, dict) else value


def _chosen(o: Override) -> list[str]:
    group = o.key_or_group.partition(".")[0]
    names, given = [], []
    for value in values(o):
        name = str(_path(value))
        if "." in name or "_target_" in o.key_or_group:
            name = _choice(group, name, o.key_or_group)
        names.append(name)
        if isinstance(value, dict):
            given += [
                f"{group}.{key}={as_override(part)}"
                for key, part in value.items()
                if key != "_target_"
            ]
    if given and len(names) > 1:
        raise InvalidInput(
            f"{o.input_line}: classes in a sweep cannot have settings of their own; sweep over "
            "paths"
        )
    return [f"{group}={','.join(names)}", *given]


def _choice(group: str, path: str, key: str) -> str:
    """The name of the choice that a class is; a user's class becomes one by its path."""
    target = find(path, key)
    for name, known in GROUPS[group].choices.items():
        if target is known:
            return name
    check_part(group, path, target, key)
    ConfigStore.instance().store(group=group, name=path, node=settings_of(target, path))
    return path


def _without(word: str, named: set[str], words: Sequence[str]) -> str:
    """`~verifier` is the choice of none, and nothing where another word chooses; other words are as
    they are."""
    group = word.removeprefix("~")
    if group not in GROUPS or word == group:
        return word
    others = {o.key_or_group for o in map(read, words) if o is not None and not o.is_delete()}
    if group in others | named or f"{group}._target_" in named:
        return ""
    return f"{group}={WITHOUT[group]}" if group in WITHOUT else word


def _without_plus(word: str, groups: Set[str]) -> str:
    """A setting of a class needs no plus: with one, Hydra would take a misspelt name."""
    group, _, name = word.partition("=")[0].removeprefix("+").partition(".")
    return word.removeprefix("+") if name and group in groups else word


def check_part(group: str, path: str, target: Any, key: str) -> None:
    base = GROUPS[group].base
    if base is None:
        if not callable(getattr(target, "rate", None)):
            raise InvalidInput(f"{key}={path} is no {group}; make it a class with a method rate")
    elif not (inspect.isclass(target) and issubclass(target, base)):
        package = base.__module__.partition(".")[0]
        public = getattr(import_module(package), base.__name__, None) is base
        inherited = f"{package if public else base.__module__}.{base.__name__}"
        raise InvalidInput(
            f"{key}={path} is no {group}; make it a class that inherits from {inherited}"
        )


def settings_of(target: Any, path: str) -> Any:
    """A configuration class with a class's settings (its fields, or its constructor's parameters,
    if their defaults are plain values), or the settings themselves where it takes any."""
    columns: list[Any] = [("_target_", str, field(default=path))]
    for name, hint, default in _fields(target) if is_dataclass(target) else _parameters(target):
        column = (name, plain_hint(hint), field(default_factory=partial(deepcopy, default)))
        try:
            OmegaConf.structured(make_dataclass("Column", [column]))
        except OmegaConfBaseException:
            column = (name, Any, column[2])
        try:
            OmegaConf.structured(make_dataclass("Column", [column]))
        except OmegaConfBaseException:
            continue
        columns.append(column)
    schema = make_dataclass(f"{path.rpartition('.')[2]}Config", columns)
    if _takes_any(target):
        return OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(schema)))
    return schema


def _fields(target: Any) -> Iterator[tuple[str, Any, Any]]:
    hints = get_type_hints(target)
    for f in fields(target):
        default = "???" if f.default is MISSING else f.default
        if f.init:
            yield (
                f.name,
                hints[f.name],
                default if f.default_factory is MISSING else f.default_factory(),
            )


def _parameters(target: Any) -> Iterator[tuple[str, Any, Any]]:
    hints = get_type_hints(target.__init__) if inspect.isclass(target) else {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            default = "???" if parameter.default is parameter.empty else parameter.default
            yield name, hints.get(name, Any), default


def _takes_any(target: Any) -> bool:
    made = target.__init__ if inspect.isclass(target) and issubclass(target, Options) else target
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(made).parameters.values())


def checked_parts(config: DictConfig) -> DictConfig:
    """The configuration, in which a class of the user's own that a file names has its own settings.

    Raises InvalidInput for a class that cannot be imported or is nothing of its group, and for a
    wrong setting.
    """
    config = config.copy()
    OmegaConf.set_struct(config, False)
    for group in GROUPS:
        if config[group] is None:
            raise InvalidInput(
                f"~{group} leaves a run without what it needs; leave that out, or give {group}=NAME"
            )
        if not is_own(path := config[group].get("_target_")):
            continue
        key = f"{group}._target_"
        check_part(group, path, target := find(path, key), key)
        if OmegaConf.get_type(config[group]) is dict:
            try:
                config[group] = OmegaConf.merge(
                    OmegaConf.structured(settings_of(target, path)), config[group]
                )
            except OmegaConfBaseException as error:
                raise InvalidInput(f"{key}={path}: {str(error).splitlines()[0]}") from error
    OmegaConf.set_struct(config, True)
    check_user_code(config)
    return config
