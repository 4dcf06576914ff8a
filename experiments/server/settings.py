"""What `ttc-serve` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.runs.flags import RUN_FLAGS

FLAGS = {"--host": "serve.host", "--port": "serve.port", **RUN_FLAGS}


@dataclass
class ServeConfig:
    """Described by `ttc-serve --help`."""

    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    key_env: str = "TTC_API_KEY"
    open: bool = False
    max_body_bytes: int = 1 << 20
    max_prompt_tokens: int | None = None
    max_tokens: int = 1024
    max_width: int = 64
    max_problems: int = 256
    max_connections: int = 512
    header_s: int = 10
    shutdown_s: int = 30
