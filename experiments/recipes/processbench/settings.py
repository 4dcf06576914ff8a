"""What `experiments.processbench` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class ProcessBenchConfig:
    """Described by `python -m experiments.processbench --help`."""

    data: str | None = None
    limit: int | None = None
    threshold: Any = 0.5
    batch: int = 8
