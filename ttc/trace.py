"""A timeline of computing and copying in Chrome's trace format (chrome://tracing,
ui.perfetto.dev)."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any


class Trace:
    """Spans of time, each on a lane ("compute", "host to device", "device to host")."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._lock = Lock()

    def add(self, lane: str, name: str, start_s: float, end_s: float, **details: Any) -> None:
        """Record a span between two readings of `time.perf_counter`."""
        event = {"name": name, "ph": "X", "pid": 0, "tid": lane, "args": details}
        with self._lock:
            self.events.append({**event, "ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6})

    def write(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps({"traceEvents": self.events, "displayTimeUnit": "ms"}))
