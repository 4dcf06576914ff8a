"""What `ttc-serve` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.cli.settings import RUN_FLAGS
from ttc.checks import NonNegativeInt, PositiveFloat, PositiveInt

UNKNOWN_FIELDS = ("refuse", "ignore")
"""What becomes of a field that no request has."""

FLAGS = {"--host": "serve.host", "--port": "serve.port", **RUN_FLAGS}


@dataclass
class ServeConfig:
    """host: where it listens. port: 0 takes a free one.
    name: what clients call the model; by default its own name.
    key_env: the environment variable with the key that callers must send.
    open: serve other machines without a key.
    max_body_bytes: of a request.
    max_prompt_tokens: of a prompt; by default what the model's context holds.
    max_tokens: of an answer.
    max_width: samples, beams and other whole numbers that a request gives a search.
    max_problems: waiting or under way; more get status 429.
    max_connections: connections at once; more get status 503.
    header_s: seconds in which the head of a request must have come.
    shutdown_s: how long requests under way may take to end after Ctrl-C.
    unknown_fields: of requests; refuse, or ignore to pass over them with a line in the log.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    key_env: str = "TTC_API_KEY"
    open: bool = False
    max_body_bytes: PositiveInt = 1 << 20
    max_prompt_tokens: PositiveInt | None = None
    max_tokens: PositiveInt = 1024
    max_width: PositiveInt = 64
    max_problems: PositiveInt = 256
    max_connections: PositiveInt = 512
    header_s: PositiveFloat = 10.0
    shutdown_s: NonNegativeInt = 30
    unknown_fields: str = "refuse"
