"""What a record says of the machine that it was made on, and of the code that has made it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.runs.provenance import code_hash
from ttc.errors import number_of

UNNOTED = "AVX512 with bfloat16"
"""The instructions of the machines whose records name none: these are older than the field."""


def save(record: Mapping[str, Any], file: Path) -> None:
    """Write a record, so that a break leaves the old one or the new one whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.new")
    new.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    new.replace(file)


def parts(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of a file: what it holds, or each of the records that it holds by name."""
    if "machine" in found:
        return [found]
    return [part for part in found.values() if isinstance(part, dict)]


def named(machine: Mapping[str, Any]) -> str:
    noted = {"instructions": UNNOTED} | dict(machine)
    names = [noted[name] for name in ("cpu", "instructions", "gpu") if name in noted]
    count = noted["threads"]
    return ", ".join([*names, number_of(count, "thread")])


def changed_modules(record: dict[str, Any]) -> list[str]:
    """The modules and files of kernels that a record was made by and that have changed or are
    gone."""
    return [name for name, known in record["code"].items() if code_hash(name) != known]
