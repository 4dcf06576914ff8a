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
        origin = None if spec is None else spec.origin
        if origin is None or not (Path(origin).parent / file).is_file() or not _ours(name, origin):
            raise SystemExit(
                f"error: `{name}` is found in {origin or 'nowhere'}, which is not this project's. "
                "If it is a file of yours, run the command from another folder; if it is another "
                "project's package, give this one an environment of its own (python -m venv) and "
                "install it there again"
            )


def _ours(name: str, origin: str) -> bool:
    """Two projects' files may have been installed into one folder; the first lines tell."""
    text = Path(origin).read_text(encoding="utf-8", errors="replace")
    return name == "conf" or "ttc.lazy" in text
