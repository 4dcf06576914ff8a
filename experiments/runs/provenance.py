"""Where a record of figures comes from: the command, the machine, the versions, the commit, and the
code measured."""

from __future__ import annotations

import ast
import hashlib
import platform
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ttc.cost_model.profile_file import hardware

MEASURED = ("ttc", "search", "verifiers")
"""The packages whose code figures are about."""

ROOT = Path(__file__).resolve().parents[2]

KERNELS = (".cpp", ".h")
"""The files of a compiled kernel, which any command may run."""
_CPP_COMMENT = re.compile(r"//[^\n]*")

_ABSOLUTE_FOLDER = re.compile(r"(?<![^\s=,])/(?:[^\s,/]+/)*(?=[^\s,/])")
"""The folders before an absolute path's last part, which say something of the machine alone."""


def provenance(command: str, *, model: str, simulated: str = "nothing") -> dict[str, Any]:
    """What stands at the head of every record. model: which one, its dtype, and whether its weights
    are real. Of an absolute path in the command its last part is kept.

    code: a hash of each module of the project that this process has loaded, and of each file of its
    kernels. Call it when everything was measured.
    """
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in MEASURED)
    loaded += sorted(
        str(file.relative_to(ROOT)) for file in (ROOT / "ttc").rglob("*") if file.suffix in KERNELS
    )
    return {
        "command": _ABSOLUTE_FOLDER.sub("", command),
        "machine": machine(),
        "commit": commit(),
        "model": model,
        "simulated": simulated,
        "code": {name: code_hash(name) for name in loaded},
    }


def machine() -> dict[str, Any]:
    versions = {name: version(name) for name in ("torch", "transformers")}
    return {**hardware(), "python": platform.python_version(), **versions}


def commit() -> str | None:
    """The commit that this tree stands on, with "+" where it has other changes to its code; None
    outside of git."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", ROOT, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--", *MEASURED, "experiments/*.py")
        return git("rev-parse", "HEAD") + ("+" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def code_hash(name: str) -> str:
    """A short hash of a module, or of a file of a kernel, without comments, docstrings and layout;
    "" for none. It is the same on every Python."""
    if name.endswith(KERNELS):
        file = ROOT / name
        return _hash(kernel_text(file.read_text(encoding="utf-8"))) if file.exists() else ""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # its package is gone
        return ""
    if spec is None or spec.origin is None:
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [statement for statement in body if not _is_docstring(statement)]
        if not getattr(node, "type_params", True):  # which Python 3.11 does not have
            del node.type_params  # type: ignore[attr-defined]
        if isinstance(node, ast.JoinedStr):  # Python 3.12.1 has empty texts in it
            node.values = [value for value in node.values if not _is_empty(value)]
    whole = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    return _hash(ast.dump(tree, **whole))


def kernel_text(text: str) -> str:
    """A file of C++ without comments and layout."""
    return " ".join(_CPP_COMMENT.sub("", text).split())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_empty(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == ""


def _is_docstring(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
