"""Where a server is, and how it is asked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from annotated_types import Ge

from ttc.checks import NonNegativeFloat, NonNegativeInt, Options, PositiveFloat, PositiveInt
from ttc.errors import InvalidInput
from ttc.text.encodable import check_encodable


@dataclass(frozen=True)
class Endpoint(Options):
    """A server that speaks OpenAI's completions protocol: vLLM, SGLang, llama.cpp, or a hosted one.

    base_url: where the server is, version included.
    model: the name that the server gives its model; None for the only one that it serves.
    key_env: the environment variable that holds the API key, if the server wants one. The key is
    read from there alone, and never written.
    concurrency: the most requests at once. Above 256 as many branches grow at once, without
    `run.batch`.
    timeout_s: how long a whole answer may take, in seconds. retries: how often a request is
    repeated that may succeed the next time. wait_s: the pause before the first repetition; it
    doubles each time, up to 30 seconds.
    context_length: the model's, in tokens, for a server that does not say.
    Raises InvalidInput for a wrong setting, and for a password or key in `base_url`.
    """

    base_url: str = "http://localhost:8000/v1"
    model: str | None = None
    key_env: str = "OPENAI_API_KEY"
    concurrency: PositiveInt = 64
    timeout_s: PositiveFloat = 600.0
    retries: NonNegativeInt = 5
    wait_s: NonNegativeFloat = 0.5
    context_length: Annotated[int, Ge(2)] | None = None

    def refusals(self) -> Mapping[str, object]:
        check_encodable(self.base_url, "base_url")
        check_encodable(self.model or "", "model")
        url = urlsplit(self.base_url)
        return {
            "base_url holds a password, a key or a query; leave it out, as it would be written to "
            f"the run's folder, and put the key into the environment variable {self.key_env}": (
                url.username is not None or url.password is not None or url.query
            ),
            f"base_url={self.base_url!r} is no address; give one as http://localhost:8000/v1": (
                url.scheme not in ("http", "https") or not url.hostname
            ),
            "key_env is not the name of an environment variable, as OPENAI_API_KEY; a key itself "
            "is not given here": not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_env),
        }

    @property
    def local(self) -> bool:
        return urlsplit(self.base_url).hostname in ("localhost", "127.0.0.1", "::1")

    def key(self) -> str | None:
        """Raises InvalidInput for what no header can hold."""
        key = os.environ.get(self.key_env) or None
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InvalidInput(
                f"the environment variable {self.key_env} holds a line break or a character that "
                "is not ASCII, which no API key has; set it again"
            )
        return key
