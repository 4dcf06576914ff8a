"""Line breaks that were typed in a shell, where they arrive as a backslash and a letter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf

_LATEX = (
    "abla|atural|cong|e|earrow|eg|eq|exists|ewline|geq|gtr|i|leq|less|mid|olimits|onumber|ot|otin|"
    "parallel|sim|u|warrow"
)
"""What follows `\\n` in LaTeX's commands."""
_TYPED = re.compile(rf"\\\\|\\n(?!(?:{_LATEX})(?![a-z]))|\\t(?![a-z])")


def typed(text: str) -> str:
    r"""`text` with line breaks for `\n` and tabs for `\t`, where these two begin no LaTeX command
    (`\neq`, `\text`).

    All else stays, two backslashes too: `\\n` is LaTeX's line break and an n.
    """
    return _TYPED.sub(lambda match: {r"\n": "\n", r"\t": "\t"}.get(match[0], match[0]), text)


def resolve_escapes(config: DictConfig) -> None:
    """Apply `typed`, in place, to every text of a run's configuration that meets the model's
    texts."""
    _resolve(config.dataset, ("instruction", "system", "end", "examples"))
    _resolve(config.search, list(config.search))
    _resolve(config.verifier, list(config.verifier or ()))
    if "train" in config:
        _resolve(config.train, ("separator", "prompt", "format"))


def _resolve(node: Any, keys: Iterable[Any]) -> None:
    for key in keys:
        if OmegaConf.is_dict(node) and (
            key not in node or key == "_target_" or OmegaConf.is_missing(node, key)
        ):
            continue
        value = node[key]
        if isinstance(value, str):
            if not OmegaConf.is_interpolation(node, key):
                node[key] = typed(value)
        elif OmegaConf.is_dict(value):
            _resolve(value, list(value))
        elif OmegaConf.is_list(value):
            _resolve(value, range(len(value)))
