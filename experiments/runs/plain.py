"""Configuration as plain Python values."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf


def as_dict(config: DictConfig | ListConfig | dict[str, Any], resolve: bool = False) -> dict[str, Any]:
    """A configuration's keys and values as a dictionary. resolve: replace its interpolations by their values."""
    if isinstance(config, dict):
        return config
    values = OmegaConf.to_container(config, resolve=resolve)
    if not isinstance(values, dict):
        raise TypeError(f"the configuration is a {type(values).__name__} and must be a dictionary")
    return {str(key): value for key, value in values.items()}
