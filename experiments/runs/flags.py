"""Flags as other servers and commands have them, beside Hydra's settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches

from experiments.cli.settings import DatasetConfig, ModelConfig, RunConfig
from experiments.runs.overrides import as_override
from experiments.runs.schema import SEARCHES
from ttc.errors import InvalidInput

NO_GROUPS: Mapping[str, type] = {}

OF_HYDRA = (
    "--cfg",
    "--config-dir",
    "--config-name",
    "--config-path",
    "--experimental-rerun",
    "--help",
    "--hydra-help",
    "--info",
    "--multirun",
    "--package",
    "--resolve",
    "--run",
    "--shell-completion",
    "--version",
)

ELSEWHERE = {
    "--served-model-name": "serve.name",
    "--max-model-len": "serve.max_prompt_tokens",
    "--max-num-seqs": "run.batch",
    "--dtype": "model.dtype",
}
"""Flags of other servers, and the settings that mean about the same."""


def as_settings(
    words: Iterable[str], flags: Mapping[str, str], groups: Mapping[str, type] = NO_GROUPS
) -> list[str]:
    """The words of a command line with `SETTING=VALUE` in the place of these flags and their
    values. groups: those of the settings that the command alone has.

    Raises InvalidInput for a flag that is neither one of these nor Hydra's, and for one without a
    value.
    """
    settings = []
    words = iter(words)
    for word in words:
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") or flag in OF_HYDRA:
            settings.append(word)
            continue
        if flag not in flags:
            raise InvalidInput(unknown_flag(flag, flags, groups))
        value = value if equals else next(words, "")
        if not value or value.startswith("--"):
            raise InvalidInput(f"{flag} needs a value; give {flag} VALUE or {flags[flag]}=VALUE")
        plain = re.fullmatch(r"[\w./:@+-]+", value)
        settings.append(f"{flags[flag]}={value if plain else as_override(value)}")
    return settings


def unknown_flag(
    flag: str, flags: Mapping[str, str], groups: Mapping[str, type] = NO_GROUPS
) -> str:
    """What to say of a flag that there is not: the flag or the setting that it would be, if any."""
    serve = "serve" in groups
    offered = f"the flags are {', '.join(flags)}; all else is SETTING=VALUE, as --help lists"
    if serve and flag == "--api-key":
        return (
            f"{flag} is no flag; put the key into the environment variable that serve.key_env "
            "names (TTC_API_KEY)"
        )
    if close := get_close_matches(flag, flags, 1, 0.75):
        return f"{flag} is no flag; is it {close[0]}?"
    elsewhere = ELSEWHERE.get(flag)
    if elsewhere is None or (elsewhere.startswith("serve.") and not serve):
        elsewhere = _setting_like(flag, groups)
    return f"{flag} is no flag; {f'give {elsewhere}=VALUE' if elsewhere else offered}"


def _setting_like(flag: str, own: Mapping[str, type]) -> str | None:
    """The setting whose name is most like a flag's; those of a search come first."""
    searches = [("search", kind) for kind in SEARCHES.values()]
    groups = [("run", RunConfig), ("model", ModelConfig), ("dataset", DatasetConfig)]
    groups = [*own.items(), *groups, *searches] if own else [*searches, *groups]
    settings: dict[str, str] = {}
    for group, kind in groups:
        for field in fields(kind):
            settings.setdefault(field.name, f"{group}.{field.name}")
            settings[f"{group}_{field.name}"] = f"{group}.{field.name}"
    close = get_close_matches(re.sub("[-.]", "_", flag.lstrip("-")), settings, 1, 0.8)
    return settings[close[0]] if close else None
