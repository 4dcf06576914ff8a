"""What a run was made from, beyond its configuration: the rows and the weights that lay under the
same names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.runs.parameters import cached_config, models_of
from ttc.errors import number_of
from ttc.results import Problem

WHOLE_BYTES = 64 * 2**20
"""Files up to this size are hashed whole."""
STRIDE_BYTES, PIECE_BYTES = 2**20, 4096
"""Of larger ones, this many bytes at every so many; a changed matrix is larger than the gap."""
UNUSABLE = "unusable"


def data_fingerprint(
    problems: Sequence[Problem], failures: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """A short hash of question, gold answer and tests for each problem's id; nothing is
    published."""
    rows = {p.id: _digest("\x00".join(_parts(p)).encode()) for p in problems}
    return rows | {name: UNUSABLE for name, _ in failures}


def _parts(problem: Problem) -> list[str]:
    parts = [problem.question, str(problem.answer)]
    names = ("tests", "shown_tests", "packed_tests", "reference", "preamble")
    parts += [] if problem.messages is None else [repr(problem.messages)]
    return parts + [repr(about) for name in names if (about := problem.metadata.get(name))]


def examples_fingerprint(examples: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {"all": _digest(repr(list(examples)).encode())} if examples else {}


def model_fingerprint(name: str) -> dict[str, str]:
    """The size and a hash of each file of a model, or its revision on the hub; {} for one that is
    not in the cache yet."""
    from ttc.model.loading.default_model import SMOLLM2, SMOLLM2_PACKAGE, SMOLLM2_VERSION
    from ttc.model.loading.model_files import local_path

    if name == SMOLLM2:
        return {SMOLLM2_PACKAGE: f"version {SMOLLM2_VERSION}"}
    path = local_path(name)
    if path is None:
        config = cached_config(name)
        return {} if config is None else {name: f"revision {config.parent.name}"}
    files = [path] if path.is_file() else sorted(f for f in path.iterdir() if _counts(f))
    return {file.name: _file(file) for file in files}


def reward_fingerprint(verifier: Any) -> dict[str, str]:
    """The same of every model that a verifier's configuration names."""
    return {
        f"{name}, {file}": mark
        for name in models_of(verifier)
        for file, mark in model_fingerprint(name).items()
    }


def differences(
    before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """What changed between two fingerprints, a line each.

    Rows that only one of them has are no change of the data: dataset.limit decides which are used.
    """
    rows, rows_now = before.get("data", {}), now.get("data", {})
    lines = []
    if changed := [name for name in rows if rows_now.get(name, rows[name]) != rows[name]]:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        lines.append(
            f"the question or gold answer of {len(changed)} of "
            f"{number_of(len(rows), 'solved problem')}: {', '.join(changed[:5])}{more}"
        )
    for kind, what in (
        ("examples", "solved examples"),
        ("model", "model"),
        ("verifier", "verifier's model"),
        ("code", "code"),
    ):
        old, new = before.get(kind), now.get(kind)
        if not old or not new:  # not known then, or not yet
            continue
        # of code, which config.yaml names, another version may have kept less
        names = old.keys() & new.keys() if kind == "code" else old.keys() | new.keys()
        for name in sorted(names):
            was, mark = old.get(name, "missing"), new.get(name, "missing")
            if was != mark:
                lines.append(f"the {what}, {name}: {was} -> {mark}")
    return lines


def _counts(file: Path) -> bool:
    return file.is_file() and not file.name.startswith(".") and file.suffix not in (".md", ".lock")


def _file(path: Path) -> str:
    """Size and hash; of a large file a sample is hashed, and its time tells the rest."""
    stat = path.stat()
    with path.open("rb") as file:
        if stat.st_size <= WHOLE_BYTES:
            return f"{stat.st_size} bytes, hash {_digest(file.read())}"
        starts = [*range(0, stat.st_size, STRIDE_BYTES), max(0, stat.st_size - PIECE_BYTES)]
        sample = b"".join(os.pread(file.fileno(), PIECE_BYTES, start) for start in starts)
    return f"{stat.st_size} bytes, of {stat.st_mtime:.0f} s, sample {_digest(sample)}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
