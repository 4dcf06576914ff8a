"""Line breaks that were typed in a shell, where they arrive as a backslash and a letter."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf

_LATEX = (
    "abla|atural|cong|e|earrow|eg|eq|exists|ewline|geq|gtr|i|leq|less|mid|olimits|onumber|ot|otin|parallel|sim|u|warrow"
)
"""What follows `\\n` in LaTeX's commands."""
_TYPED = re.compile(rf"\\\\|\\n(?!(?:{_LATEX})(?![a-z]))|\\t(?![a-z])")


def typed(text: str) -> str:
    r"""`text` with line breaks for `\n` and tabs for `\t`, where these two begin no LaTeX command (`\neq`, `\text`).

    All else stays, two backslashes too: `\\n` is LaTeX's line break and an n.
    """
    return _TYPED.sub(lambda found: {r"\n": "\n", r"\t": "\t"}.get(found[0], found[0]), text)


def resolve_escapes(config: DictConfig) -> None:
    """Apply `typed`, in place, to every text of a run's configuration that is put to the model or looked for in what it
    writes: the prompt's parts, the ends of answers, and the search's and verifier's own."""
    for part, keys in (
        (config.dataset, ("instruction", "system", "end", "examples")),
        (config.search, None),
        (config.verifier, ("question", "inner")),
    ):
        for key in list(part) if keys is None else keys:
            if key in part and key != "_target_" and not OmegaConf.is_missing(part, key):
                _resolve(part, key)


def _resolve(parent: Any, key: Any) -> None:
    value = parent[key]
    if isinstance(value, str):
        if not OmegaConf.is_interpolation(parent, key):
            parent[key] = typed(value)
    elif OmegaConf.is_dict(value):
        for inner in value:
            if inner != "_target_" and not OmegaConf.is_missing(value, inner):
                _resolve(value, inner)
    elif OmegaConf.is_list(value):
        for index in range(len(value)):
            _resolve(value, index)
