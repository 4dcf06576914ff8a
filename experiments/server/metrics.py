"""What Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from experiments.server.service import Service
from ttc.engine import Engine
from ttc.usage import Usage

SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Metrics:
    """Counters of one server. Its gauges are read when they are asked for."""

    def __init__(self, service: Service):
        self.registry = CollectorRegistry()
        common: Any = {"registry": self.registry}
        self.requests = Counter(
            "ttc_requests", "Requests by search and HTTP status", ["search", "status"], **common
        )
        self.tokens = Counter(
            "ttc_tokens", "Tokens by search and kind", ["search", "kind"], **common
        )
        self.seconds = Histogram(
            "ttc_request_seconds",
            "Seconds from a request to its last byte",
            ["search"],
            buckets=SECONDS,
            **common,
        )
        read: dict[tuple[str, str], Callable[[], float]] = {
            ("ttc_problems_open", "Problems waiting or under way"): lambda: len(service.open),
            ("ttc_problems_active", "Problems under way"): lambda: service.active,
            ("ttc_branches_decoding", "Branches whose step is under way"): lambda: service.decoding,
        }
        if isinstance(engine := service.engine, Engine):
            read["ttc_kv_bytes", "Bytes of keys and values, on the device and the host"] = (
                engine.kv_bytes
            )
        for about, value in read.items():
            Gauge(*about, **common).set_function(value)

    def used(self, search: str, usage: Usage) -> None:
        """Count the tokens of a problem that has ended, or that was given up."""
        for kind in ("prompt", "shared", "generated", "verifier"):
            self.tokens.labels(search, kind).inc(getattr(usage, f"{kind}_tokens"))

    def ended(self, search: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(search, str(status)).inc()
        if status == 200:
            self.seconds.labels(search).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
