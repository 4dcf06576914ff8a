"""Each option is told once: what it means, its default and its limit stand at its field."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.cli.described import described, help_lines
from experiments.cli.refusals import explained
from experiments.cli.settings import SETTINGS, ModelConfig, RunConfig
from experiments.runs.schema import GROUPS, Config, check_settings, schema_of
from experiments.runs.settings_help import settings_help
from search.budget import LIMITS, Budget
from ttc import InvalidInput, TTCError
from ttc.checks import option_hints
from ttc.parts import handlers

CLASSES = sorted(
    {kind for group in GROUPS.values() for kind in group.choices.values()}, key=lambda k: k.__name__
)
GIVEN = {"inner": None, "parts": (), "model": "m", "strategies": (), "server": "s", "tools": ()}
"""What a class needs beside the option that is tried."""


def beyond(hint: Any) -> list[Any]:
    """Numbers outside a hint's limits."""
    parts = [part for part in (hint, *get_args(hint)) if hasattr(part, "__metadata__")]
    limits = [limit for part in parts for limit in part.__metadata__]
    wrong: list[Any] = []
    for limit in limits:
        for end, step in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
            if (value := getattr(limit, end, None)) is not None and math.isfinite(value):
                wrong.append(value + step)
    return wrong


def leaves(hint: Any) -> set[Any]:
    """The types that a hint is made of, its limits left out."""
    if get_origin(hint) is Annotated:
        return leaves(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return {str}
    return set().union(*map(leaves, get_args(hint))) or {hint}


def is_plain(hint: Any) -> bool:
    return leaves(hint) <= {int, float, str, bool, NoneType, ...} and not is_nested(hint)


def is_nested(hint: Any) -> bool:
    """Whether lists lie in lists, which are not checked here."""
    listed = [part for part in get_args(hint) if get_origin(part) in (list, tuple, Sequence)]
    return any(get_origin(part) in (list, tuple) for one in listed for part in get_args(one))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_misspelt_option_and_a_value_beyond_its_limit_are_refused_in_one_way(kind: Any) -> None:
    hints = option_hints(kind)
    assert hints or not [f for f in fields(kind) if f.init]
    bare = [f for f in fields(kind) if f.init and f.default is f.default_factory is MISSING]
    needed = {f.name: GIVEN[f.name] for f in bare}
    for name, hint in hints.items():
        unknown = rf"^{name}x is no option of {kind.__name__}; is it "
        with pytest.raises(InvalidInput, match=unknown):
            kind(**needed, **{f"{name}x": 1})
        for value in beyond(hint):
            with pytest.raises(InvalidInput, match=rf"\b{name}={value} must be "):
                kind(**needed | {name: value})
        if is_plain(hint):
            with pytest.raises(InvalidInput, match=rf"\b{name}=b'' is of type bytes; give "):
                kind(**needed | {name: b""})


CHOICES = [(group, name) for group in GROUPS for name in GROUPS[group].choices]
RIGHT = {int: "a whole number", float: "a number", bool: "True or False"}


def refused(config: Any, override: str) -> str:
    """What a command tells of a setting that is typed after it."""
    config = config.copy()
    typed = OverridesParser.create().parse_overrides([override])
    with pytest.raises((HydraException, TTCError)) as error:
        ConfigLoaderImpl._apply_overrides_to_config(typed, config)
        check_settings(config)
        instantiate(config[override.partition(".")[0]], _convert_="all")
    return explained(error.value)


def configured(group: str, kind: Any) -> Any:
    """A run's configuration with these settings, of which those without a default are given."""
    config = OmegaConf.structured(Config)
    config[group] = OmegaConf.structured(kind)
    for name, value in GIVEN.items():
        if name in config[group].keys() and OmegaConf.is_missing(config[group], name):  # noqa: SIM118
            config[group][name] = value
    OmegaConf.set_struct(config, True)
    return config


def check_refusals(group: str, kind: Any, hints: dict[str, Any]) -> None:
    """Each option, misspelt, with a value of another type and with one beyond its limit."""
    config = configured(group, kind)
    for name, hint in hints.items():
        key = f"{group}.{name}"
        unknown = refused(config, f"{key}x=1")
        assert unknown.startswith(f"{key}x is no setting") and "; is it " in unknown
        listed = {get_origin(part) for part in (hint, *get_args(hint))} & {list, tuple, Sequence}
        types = {list} if listed else leaves(hint) - {NoneType}
        if types <= {int} or types <= {int, float} or types <= {bool}:
            right = RIGHT[float if float in types else types.pop()]
            assert refused(config, f"{key}=much") == f"{key}=much is of type str; give {right}"
        for value in beyond(hint):
            told = re.search(rf"\b{name}=(\S+) must be ", refused(config, f"{key}={value}"))
            assert told is not None and float(told[1]) == value


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_hydra_refuses_each_option_of_a_choice_as_its_class_does(group: str, name: str) -> None:
    kind = GROUPS[group].choices[name]
    check_refusals(group, schema_of(kind), option_hints(kind))


@pytest.mark.parametrize("group", ["run", "dataset"])
def test_hydra_refuses_each_setting_that_no_object_is_made_of(group: str) -> None:
    check_refusals(group, SETTINGS[group], option_hints(SETTINGS[group]))


SAID = {**SETTINGS, "model": ModelConfig, **handlers("settings")}


@pytest.mark.parametrize("kind", [*CLASSES, *SAID.values()], ids=lambda kind: kind.__name__)
def test_every_option_is_described_where_it_is_defined(kind: Any) -> None:
    words = described(kind)
    assert not [f.name for f in fields(kind) if f.init and not words.get(f.name)]


@pytest.mark.parametrize("group", SAID)
def test_the_help_of_settings_has_each_with_its_default(group: str) -> None:
    lines = help_lines(group, SAID[group])
    for f in fields(SAID[group]):
        assert f"  {group}.{f.name}=" in lines
    assert max(map(len, lines.splitlines())) <= 120


@pytest.mark.few(8)
@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_help_behind_a_choice_has_all_of_its_settings(group: str, name: str) -> None:
    if (group, name) == ("search", "compute_optimal"):  # what it needs is given in a file
        return
    said = settings_help([f"{group}={name}"])
    kind = GROUPS[group].choices[name]
    assert said.startswith(f"{group}={name}: ")
    assert {*re.findall(rf"^  {group}\.(\w+)=", said, re.MULTILINE)} == {*option_hints(kind)}


def test_help_behind_choices_has_their_own_defaults() -> None:
    both = settings_help(["-m", "search=greedy,dvts", "model=hf", "--verifier=self", "run.seed=1"])
    greedy, dvts, model, verifier = both.split("\n\n")
    assert "search.temperature=X        how tokens are drawn (see `ttc.Sampling`) (0; " in greedy
    assert "the most tokens of a step (32)" in dvts  # conf/search/dvts.yaml; the class has 256
    assert "model.gguf_file=" in model and verifier.startswith("verifier=self: ")
    assert "run.seed" not in both
    assert settings_help(["verifier=none"]) == "verifier=none has no settings"
    with pytest.raises(HydraException, match="gredy") as unknown:
        settings_help(["search=gredy"])
    assert explained(unknown.value).startswith("search=gredy is unknown; is it greedy? ")


@pytest.mark.parametrize("flag", [["--config-dir"], ["-cd"], []])
def test_help_behind_a_choice_of_a_folder_of_the_users_own(flag: list[str], tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    text = "defaults: [schema]\nname: shop\npath: shop.jsonl\n"
    (tmp_path / "dataset/shop.yaml").write_text(text)
    place = [*flag, str(tmp_path)] if flag else [f"--config-dir={tmp_path}"]
    said = settings_help([*place, "dataset=shop"])
    assert said.startswith("Settings of dataset=shop") and "(shop.jsonl)" in said


OWN = """
from dataclasses import dataclass
from search import BestOfN

@dataclass(frozen=True)
class Mine(BestOfN):
    '''Mine alone.

    patience: how long.
    '''
    patience: int = 3

class Rates:
    "Rates."

    def rate(self, branches, questions, engine):
        return [[1.0] for _ in branches]
"""


def test_help_behind_a_class_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_help.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    said = settings_help(["search=own_help.Mine", "verifier=own_help.Rates"])
    assert "Mine alone\n" in said and "search.patience=N           how long (3)" in said
    assert said.endswith("verifier=own_help.Rates: Rates\nits class says more")


def test_a_run_has_the_limits_of_a_budget() -> None:
    run, budget = option_hints(RunConfig), option_hints(Budget)
    assert {name: run[name] for name in LIMITS} == {name: budget[name] for name in LIMITS}
    assert get_type_hints(RunConfig)["max_wall_s"] == float | None


def test_a_description_may_be_of_several_options_and_ends_at_the_next() -> None:
    words = described(ModelConfig)
    assert words["device"] == words["dtype"] and "device_map" in words
    assert "device_map:" not in words["dtype"]
