"""What `--help` shows behind choices, as `search=beam_search --help`: their settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from hydra.utils import get_class

from experiments.cli.described import first_sentence, help_lines
from experiments.cli.settings import RUN_FLAGS, DatasetConfig, ModelConfig
from experiments.runs.config_values import as_dict
from experiments.runs.flags import as_settings
from experiments.runs.hydra_command import composed
from experiments.runs.overrides import read, values
from experiments.runs.schema import GROUPS

NO_CLASS = {"model": ModelConfig, "dataset": DatasetConfig}
"""The groups of which no object is made, and what describes their settings."""


def settings_help(words: Sequence[str]) -> str:
    """What each choice on a command line does, and its settings with their defaults."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config-dir", "-cd")
    place, words = parser.parse_known_args(words)
    own = [f"hydra.searchpath=['{Path(d).absolute().as_uri()}']" for d in [place.config_dir] if d]
    overrides = filter(None, map(read, as_settings(words, RUN_FLAGS)))
    return "\n\n".join(
        _help(override.key_or_group, name, own)
        for override in overrides
        if override.key_or_group in {*GROUPS, *NO_CLASS}
        for name in values(override)
    )


def _help(group: str, name: Any, own: Sequence[str]) -> str:
    """own: where a user's own choices lie."""
    values = as_dict(composed([*own, f"{group}={name}"])[group], resolve=True)
    if group in NO_CLASS:
        return f"Settings of {group}={name}\n{help_lines(group, NO_CLASS[group], values)}"
    if values["_target_"] is None:
        return f"{group}={name} has no settings"
    kind = get_class(values["_target_"])
    lines = help_lines(group, kind, values) if is_dataclass(kind) else "its class says more"
    return f"{group}={name}: {first_sentence(kind)}\n{lines}"
