"""What the groups of the configuration can be set to. Nothing that takes time is imported."""

from __future__ import annotations

from pathlib import Path

from ttc.lazy import public_names

PACKAGES = {"search": "search", "verifier": "verifiers"}
"""The groups whose choices are the classes of a package, each by the name of its file."""


def choices(group: str) -> list[str]:
    """The names of a group's choices."""
    package = PACKAGES.get(group)
    if package is None:
        return written(group)
    homes = public_names(package)
    files = {homes[name] for name in homes if name[0].isupper()} - {f"{package}.base"}
    classes = {choice_of(file) for file in files if file.startswith(f"{package}.")}
    return sorted(classes.union(written(group)))


def written(group: str) -> list[str]:
    """The choices that have a file in `conf`: those with other settings than their class's defaults, and words."""
    folder = conf() / group
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.yaml"))


def choice_of(module: str) -> str:
    """The name of the choice that a file's class is."""
    return module.rpartition(".")[2].removesuffix("_verifier")


def conf() -> Path:
    """The folder of the settings."""
    import conf  # this project's, as `experiments.cli.own_packages.check` has seen

    return Path(next(iter(conf.__path__)))
