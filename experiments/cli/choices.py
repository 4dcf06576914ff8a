"""What the groups of the configuration can be set to. Nothing that takes time is imported."""

from __future__ import annotations

from pathlib import Path

from ttc.lazy import public_names
from ttc.parts import handled

FOLDERS = {"search": "search", "verifier": "verifiers", "memory": "ttc.residency"}
"""The groups whose choices are the public classes of a folder, each by the name of its file."""


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


def public_classes(folder: str) -> dict[str, str]:
    """The public classes that a folder's files define, by the names of their choices."""
    homes = public_names(folder.partition(".")[0])
    return {
        file.rpartition(".")[2].removesuffix("_verifier"): name
        for name, file in homes.items()
        if name[0].isupper() and file.rpartition(".")[0] == folder and not file.endswith(".base")
    }


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
