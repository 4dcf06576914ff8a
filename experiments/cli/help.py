"""The pages that `--help` shows, at once: nothing that takes time is imported."""

from __future__ import annotations

import re
from pathlib import Path

from experiments.cli.choices import choices, defaults
from experiments.cli.package_check import check
from ttc.parts import handler

GROUPS = (
    "model",
    "dataset",
    "search",
    "verifier",
    "tools",
    "memory",
    "placement",
    "cache",
    "sharing",
    "gate",
    "speculation",
    "backend",
)
PAGES = Path(__file__).with_name("pages")


def page(name: str = "run") -> str:
    """The page of a command. `{GROUP}` on a line of its own stands for the settings of a group,
    `{groups}` for what each group can be set to."""
    text = (PAGES / f"{name}.txt").read_text(encoding="utf-8")
    return re.sub(r"^\{(\w+)\}$", lambda group: _listed(group[1]), text, flags=re.MULTILINE)


def _listed(group: str) -> str:
    if group == "groups":
        return _choices()
    from experiments.cli.described import help_lines
    from experiments.cli.settings import SETTINGS

    return help_lines(group, SETTINGS.get(group) or handler("settings", group))


def _choices() -> str:
    check()
    chosen = defaults()
    lines = []
    for group in GROUPS:
        names = [f"{name}*" if name == chosen[group] else name for name in choices(group)]
        lines += _wrapped(f"  {group:<11}", names)
    lines += _wrapped("  +experiment=", choices("experiment"))
    return "\n".join([*lines, "  (* the default)", ""])


def _wrapped(head: str, words: list[str], width: int = 80) -> list[str]:
    lines = [head]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(" " * len(head))
        lines[-1] += " " + word
    return lines
