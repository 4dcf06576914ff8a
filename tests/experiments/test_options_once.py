"""Each option is told once: what it means, its default and its limit stand at its field."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

import pytest

import ttc
from experiments.cli.described import described, help_lines
from experiments.cli.settings import SETTINGS, ModelConfig, RunConfig
from experiments.runs.schema import GROUPS
from search.budget import LIMITS, Budget
from ttc import InvalidInput
from ttc.checks import check_limits, option_hints
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


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_misspelt_option_and_a_value_beyond_its_limit_are_refused_in_one_way(kind: Any) -> None:
    hints = option_hints(kind)
    assert hints or not [f for f in fields(kind) if f.init]
    needed = {
        f.name: GIVEN[f.name]
        for f in fields(kind)
        if f.init and f.default is MISSING and f.default_factory is MISSING
    }
    for name, hint in hints.items():
        with pytest.raises(
            InvalidInput, match=rf"^{name}x is no option of {kind.__name__}; is it "
        ):
            kind(**needed, **{f"{name}x": 1})
        for value in beyond(hint):
            with pytest.raises(InvalidInput, match=rf"\b{name}={value} must be "):
                kind(**needed | {name: value})


SAID = {**SETTINGS, "model": ModelConfig, **handlers("settings")}


@pytest.mark.parametrize("group", SAID)
def test_every_setting_is_described_where_it_is_defined(group: str) -> None:
    words = described(SAID[group])
    assert not [f.name for f in fields(SAID[group]) if not words.get(f.name)]


@pytest.mark.parametrize("group", SAID)
def test_the_help_of_settings_has_each_with_its_default(group: str) -> None:
    lines = help_lines(group, SAID[group])
    for f in fields(SAID[group]):
        assert f"  {group}.{f.name}=" in lines
    assert max(map(len, lines.splitlines())) <= 120


def test_a_run_has_the_limits_of_a_budget() -> None:
    run, budget = option_hints(RunConfig), option_hints(Budget)
    assert {name: run[name] for name in LIMITS} == {name: budget[name] for name in LIMITS}
    assert get_type_hints(RunConfig)["max_wall_s"] == float | None


def test_settings_beyond_their_limits_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^run\.batch=0 must be at least 1, or null$"):
        check_limits(RunConfig(batch=0), RunConfig, "run.")  # type: ignore[call-arg]


def test_a_description_may_be_of_several_options_and_ends_at_the_next() -> None:
    words = described(ttc.Auto)
    assert words["prompt_tokens"] == words["branches"] and "problems" in words
    assert "problems:" not in words["branches"]
