"""What the groups of the configuration can be set to. Nothing that takes time is imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ttc.lazy import FOLDERS, WHEN, public_classes
from ttc.parts import handled

OTHERS = {
    "model": ("hf",),
    "verifier": ("none",),
    "tools": ("none",),
    "memory": ("quantized_kv",),
    "placement": ("resident", "streamed", "split"),
    "cache": ("none", "rsbcm"),
    "sharing": ("exact",),
    "gate": ("none", "decode"),
    "speculation": ("none",),
    "backend": ("local",),
}
"""Other choices without a file in `conf`."""


def choices(group: str) -> list[str]:
    classes = public_classes(FOLDERS[group]) if group in FOLDERS else ()
    return sorted({*written(group), *classes, *OTHERS.get(group, ()), *handled().get(group, ())})


def unmarked(group: str, name: str) -> str:
    """What to tell of a name that is no choice, where the folder has such a file."""
    folder = FOLDERS.get(group)
    if folder is None or not name.isidentifier() or find_spec(folder) is None:
        return ""
    if find_spec(f"{folder}.{name}") is None:
        return ""
    return f'; {folder}.{name} is none until a class of it says "{WHEN}: ..." in its docstring'


def written(group: str) -> list[str]:
    """The choices with a file in `conf`, for words or for settings other than the defaults."""
    folder = conf() / group
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.yaml"))


def defaults() -> dict[str, str]:
    """The choice of each group where nothing is said."""
    import yaml

    entries = yaml.safe_load((conf() / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {
        group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()
    }


def conf() -> Path:
    """The folder of the settings."""
    import conf  # this project's, as `experiments.cli.package_check.check` has seen

    return Path(next(iter(conf.__path__)))
