"""A configuration as plain Python values, nested or by dotted keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf


def as_dict(
    config: DictConfig | ListConfig | dict[str, Any], resolve: bool = False
) -> dict[str, Any]:
    """A configuration as a dictionary. resolve: its interpolations replaced by their values."""
    if isinstance(config, dict):
        return config
    values = OmegaConf.to_container(config, resolve=resolve)
    if not isinstance(values, dict):
        raise TypeError(f"the configuration is a {type(values).__name__} and must be a dictionary")
    return {str(key): value for key, value in values.items()}


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """A nested configuration by dotted keys."""
    values: dict[str, Any] = {}
    for key, value in as_dict(config).items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def changed_values(
    before: Mapping[str, Any], now: Mapping[str, Any], free: Iterable[str] = ()
) -> Iterator[str]:
    """A line for each key that has another value now. free: keys that may differ."""
    for key in sorted((before.keys() | now.keys()) - set(free)):
        if before.get(key) != now.get(key):
            yield f"{key}: {before.get(key)!r} -> {now.get(key)!r}"


def listed(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
