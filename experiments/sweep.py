"""What a sweep's command line means."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

PRESETS = "experiment"
"""The group whose choices set others."""


def sweeps(arguments: Sequence[str]) -> bool:
    """Whether these words of a command line ask for a sweep."""
    return bool({"-m", "--multirun"} & set(arguments))


def for_each_job(arguments: Sequence[str]) -> list[str]:
    """The words of a sweep's command line, in which the settings of a swept group are given to each job alone.

    Hydra applies what is not swept to the configuration without any of the swept choices first, where the setting of a
    swept search need not exist: `search=greedy,best_of_n search.max_tokens=40`. Written as a sweep over one value,
    `search.max_tokens=choice(40)`, it reaches the jobs alone.
    """
    overrides = [_read(word) for word in arguments]
    swept = {_group(o) for o in overrides if o is not None and o.is_sweep_override()}
    return [
        _one_value(o) if o is not None and swept & {_group(o), PRESETS} and _group(o) not in ("run", "hydra") else word
        for word, o in zip(arguments, overrides, strict=True)
    ]


def _read(word: str) -> Override | None:
    """The override that a word stands for; None for an option, and for what Hydra will refuse."""
    if "=" not in word or word.startswith("-"):
        return None
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None


def _group(override: Override) -> str:
    return override.key_or_group.split(".")[0].split("/")[0]


def _one_value(override: Override) -> str:
    """The override as a sweep over its one value; as it is where it is one already, or Hydra would change the value."""
    given = str(override.input_line)
    if override.is_sweep_override() or override.is_delete():
        return given
    key = override.get_key_element()
    try:
        one = f"{key}=choice({override.get_value_element_as_str()})"
        (put,) = OverridesParser.create().parse_override(one).sweep_string_iterator()
        kept = OverridesParser.create().parse_override(f"{key}={put}").value() == override.value()
    except HydraException:
        return given
    return one if kept else given
