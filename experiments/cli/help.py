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


def help_page(name: str) -> str:
    """The page of a command."""
    return page() if name == "run" else _text(name)


def page() -> str:
    """The page of `experiments.run`, with what each group can be set to."""
    check()
    chosen = defaults()
    lines = []
    for group in GROUPS:
        names = [f"{name}*" if name == chosen[group] else name for name in choices(group)]
        lines += _wrapped(f"  {group:<11}", names)
    lines += _wrapped("  +experiment=", choices("experiment"))
    return _text("run").replace("{groups}", "\n".join([*lines, "  (* the default)", ""]))


def _text(name: str) -> str:
    """A page's words; `{GROUP}` on a line of its own stands for the settings of a group."""
    text = (PAGES / f"{name}.txt").read_text(encoding="utf-8")
    return re.sub(r"^\{(\w+)\}$", lambda group: _settings(group[1]), text, flags=re.MULTILINE)


def _settings(group: str) -> str:
    from experiments.cli.described import help_lines
    from experiments.cli.settings import SETTINGS

    if group == "groups":
        return "{groups}"
    return help_lines(group, SETTINGS.get(group) or handler("settings", group))


def _wrapped(head: str, words: list[str], width: int = 80) -> list[str]:
    lines = [head]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(" " * len(head))
        lines[-1] += " " + word
    return lines
