"""Whether the packages that the commands import are this project's: their names are common ones."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGES = {
    "ttc": "engine.py",
    "search": "driver.py",
    "verifiers": "self_verifier.py",
    "conf": "config.yaml",
}
"""Each package, and a file that ours has."""


def check() -> None:
    """End the process with a message if a package of another project or of the user stands where
    ours should: PyPI has a `verifiers` and a `ttc` of others, and `conf/` and `search.py` are
    common names."""
    for name, file in PACKAGES.items():
        spec = find_spec(name)
        places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
        if (
            spec is None
            or not any((place / file).is_file() for place in places)
            or not _ours(name, spec.origin)
        ):
            place = spec.origin or ", ".join(map(str, places)) if spec else "nowhere"
            raise SystemExit(
                f"error: `{name}` is found in {place}, which is not this project's. If it is a "
                "file of yours, run the command from another folder; if it is another project's "
                "package, give this one an environment of its own (python -m venv) and install it "
                "there again"
            )


def _ours(name: str, origin: str | None) -> bool:
    """Whether the package's first lines are ours: two projects' files may have been installed into
    one folder."""
    if origin is None:  # a folder without __init__.py
        return False
    return name == "conf" or "ttc.lazy" in Path(origin).read_text(
        encoding="utf-8", errors="replace"
    )
