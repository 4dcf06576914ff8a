"""Flags as other servers and commands have them, beside Hydra's settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from experiments.runs.overrides import as_override
from ttc.errors import InvalidInput

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


def as_settings(words: Sequence[str], flags: Mapping[str, str]) -> list[str]:
    """The words of a command line with `SETTING=VALUE` in the place of these flags and their
    values. Raises InvalidInput for a flag that is neither one of these nor Hydra's, and for one
    without a value."""
    return list(_settings(iter(words), flags))


def _settings(words: Iterator[str], flags: Mapping[str, str]) -> Iterator[str]:
    for word in words:
        flag, given, value = word.partition("=")
        if not flag.startswith("--") or flag in OF_HYDRA:
            yield word
        elif flag not in flags:
            raise InvalidInput(unknown_flag(flag, flags))
        else:
            value = value if given else next(words, "")
            if not value or value.startswith("--"):
                raise InvalidInput(
                    f"{flag} needs a value; give {flag} VALUE or {flags[flag]}=VALUE"
                )
            plain = re.fullmatch(r"[\w./:@+-]+", value)
            yield f"{flags[flag]}={value if plain else as_override(value)}"


def unknown_flag(flag: str, flags: Mapping[str, str]) -> str:
    """What to say of a flag that there is not."""
    if close := get_close_matches(flag, flags, 1, 0.75):
        return f"{flag} is no flag; is it {close[0]}?"
    return (
        f"{flag} is no flag; the flags are {', '.join(flags)}; all else is SETTING=VALUE, as "
        "--help lists"
    )
