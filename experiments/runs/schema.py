"""What a run's configuration may hold: a misspelt key or a wrong type is refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import search
import ttc
from experiments.cli.choices import written
from experiments.cli.settings import (
    SETTINGS,
    CalibrateConfig,
    DatasetConfig,
    ModelConfig,
    RunConfig,
    RunSettings,
)
from experiments.runs.default_verifier import default_verifier
from experiments.runs.run_name import register_names
from ttc.approximate.early_exit import ExitRule
from ttc.checks import check_limits
from ttc.errors import refusing
from ttc.lazy import public_classes
from ttc.parts import handlers, load, missing
from ttc.placement.base import Placement
from ttc.residency.base import Residency
from ttc.text.prompt import words_for
from verifiers.ensemble import Combined


@dataclass
class CalibratedExitConfig:
    """calibration: a file of `experiments.calibrate` with calibrate.level=2, which holds the exit's
    settings."""

    calibration: str = "???"


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    search: Any = None
    verifier: Any = None
    tools: Any = None
    memory: Any = None
    placement: Any = None
    cache: Any = None
    sharing: Any = None
    gate: Any = None
    speculation: Any = None
    backend: Any = None
    run: RunSettings = field(default_factory=RunConfig)


def classes(folder: str) -> dict[str, type]:
    return {choice: load(place) for choice, place in public_classes(folder).items()}


SEARCHES = classes("search")
RATERS = {**classes("verifiers"), **handlers("verifier")}
VERIFIERS = {name: target for name, target in RATERS.items() if not issubclass(target, Combined)}
"""Those that other verifiers can name."""

CACHES = {"rsbcm": ttc.BlockCache, "lru": ttc.BlockCache}
SHARING = {"exact": ttc.Sharing, "none": ttc.Sharing, "similar": ttc.Sharing}
GATES = {"decode": ttc.DecodeGate}
PLACEMENTS = {"streamed": ttc.Streamed, "split": ttc.Split}
POLICIES: dict[str, type] = {
    **classes("ttc.residency"),
    "auto": ttc.Auto,
    "quantized_kv": ttc.QuantizedKV,
}


@dataclass(frozen=True)
class Group:
    """choices: the classes of a group, by the names of their choices. base: what a user's class
    inherits from, None for anything that rates.
    """

    choices: Mapping[str, type]
    base: type | None


GROUPS = {
    "search": Group(SEARCHES, search.Search),
    "verifier": Group(RATERS, None),
    "memory": Group(POLICIES, Residency),
    "placement": Group(PLACEMENTS, Placement),
    "cache": Group(CACHES, ttc.BlockCache),
    "sharing": Group(SHARING, ttc.Sharing),
    "gate": Group(GATES, ttc.DecodeGate),
    "backend": Group({**handlers("backend"), **classes("ttc.remote")}, ttc.Backend),
    **{name: Group(handlers(name), base) for name, base in handlers("group").items()},
}


WITHOUT = {
    "verifier": "none",
    "tools": "none",
    "cache": "none",
    "gate": "none",
    "speculation": "none",
    "placement": "resident",
    "backend": "local",
}
"""The choice that leaves a group out."""


def _verifier(name: str) -> type:
    if name not in VERIFIERS:
        raise missing(f"verifier={name}")
    return VERIFIERS[name]


def target_of(target: type) -> str:
    return f"{target.__module__.partition('.')[0]}.{target.__name__}"


def plain_hint(hint: Any) -> Any:
    """The hint as Hydra has it: texts for choices, Any for what is no plain value."""
    if get_origin(hint) is Literal:
        return str
    if any(
        isinstance(kind, type) and kind.__module__ != "builtins" for kind in (hint, *get_args(hint))
    ):
        return Any  # a part of its own, chosen from its own group
    if get_origin(hint) is Sequence:
        return list[get_args(hint)[0]]  # type: ignore[misc]
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(plain_hint, get_args(hint)))]  # noqa: UP007
    return hint


# defaults of settings that follow others; a configuration without them cannot be read
OmegaConf.register_new_resolver(
    "words_for", lambda kind, extract: words_for(kind if extract is None else "text"), replace=True
)
OmegaConf.register_new_resolver(
    "verifier_for", lambda kind: target_of(_verifier(default_verifier(kind))), replace=True
)


def schema_of(target: Any) -> type:
    """A configuration class with the settings of `target`, plain values."""
    columns: list[Any] = [("_target_", str, field(default=target_of(target)))]
    for name, hint, default in settings(target):
        columns.append((name, plain_hint(hint), field(default_factory=partial(deepcopy, default))))
    return make_dataclass(f"{target.__name__}Config", columns)


def settings(target: Any) -> Iterator[tuple[str, Any, Any]]:
    """The name, hint and default, "???" for none, of each field of a dataclass, or of each
    parameter of another class's constructor."""
    hints = get_type_hints(target if is_dataclass(target) else target.__init__)
    made = {f.name: f.default_factory for f in fields(target)} if is_dataclass(target) else {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            default = "???" if parameter.default is parameter.empty else parameter.default
            if (factory := made.get(name, MISSING)) is not MISSING:
                default = factory()
            yield name, hints.get(name, Any), default


def extended(name: str, node: type) -> type:
    """`Config` with one more part. Merged later, its other fields are missing and keep their
    values."""
    kept: list[Any] = [
        (f.name, get_type_hints(Config)[f.name], field(default="???")) for f in fields(Config)
    ]
    return make_dataclass(
        f"{node.__name__}Job", [*kept, (name, node, field(default_factory=node))], bases=(Config,)
    )


def check_settings(config: DictConfig) -> None:
    """Raise InvalidInput for a setting beyond its limit, among those that no object is made of."""
    for group, kind in {**SETTINGS, **handlers("settings")}.items():
        if config.get(group) is not None:
            check_limits(config[group], kind, f"{group}.")


@cache
def register() -> None:
    """Make all settings known to Hydra, once in a process."""
    register_names()
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, kind in (("model", ModelConfig), ("dataset", DatasetConfig), ("run", RunConfig)):
        store.store(group=group, name="schema", node=kind)
    store.store(group="model", name="hf", node=ModelConfig)
    for group, entry in GROUPS.items():
        for name, target in entry.choices.items():
            with refusing(
                (OmegaConfBaseException, NameError),
                f"{target.__module__}.{target.__name__} has a setting that cannot be read: "
                "{error}; give it a plain hint and default",
                words=lambda error: str(error).partition("\n")[0],
            ):
                node = schema_of(target)
                store.store(group=group, name=f"{name}_schema", node=node)
                if name not in written(group):
                    store.store(group=group, name=name, node=node)
    for name, target in VERIFIERS.items():
        store.store(group="verifier/inner", name=name, node=schema_of(target))
    for rule in get_args(ExitRule):
        store.store(group="verifier/exit", name=rule, node=schema_of(ttc.EarlyExit)(rule=rule))
    store.store(group="verifier/exit", name="calibrated", node=CalibratedExitConfig)
    store.store(name="calibrate_schema", node=extended("calibrate", CalibrateConfig))
    for name, node in handlers("settings").items():
        store.store(name=f"{name}_schema", node=extended(name, node))
    for group, name in WITHOUT.items():
        store.store(group=group, name=name, node={"_target_": None})
