"""Requests that are refused, in the form that clients of OpenAI's protocol read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starlette.responses import JSONResponse

from ttc.errors import ContextExceeded, InvalidInput

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
"""What a status is called, where it is neither the caller's fault in general nor the server's."""

CLIENT_LEFT = 499
"""The status under which requests are counted whose client has left."""


class Refusal(Exception):
    """A request that gets no answer. param: the field that is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    @classmethod
    def of(
        cls,
        error: InvalidInput,
        param: str | None = None,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> Refusal:
        """A request that holds what cannot be used.

        param: the field that is to blame, unless the message begins with a setting's name, as
        "n=0 must be at least 1" does, and `names` has what the client calls it.
        """
        code = "context_length_exceeded" if isinstance(error, ContextExceeded) else None
        setting, _, rest = str(error).partition("=")
        if setting in names:
            param = names[setting]
            return cls(400, f"{param}={rest}", param=param, code=code)
        return cls(400, str(error), param=param, code=code)

    def renamed(self, names: Mapping[str, str]) -> Refusal:
        """The same where the field has another name."""
        first, dot, rest = (self.param or "").partition(".")
        if first not in names:
            return self
        before, param = self.param or "", f"{names[first]}{dot}{rest}"
        message = self.message
        if message.startswith(before):
            message = param + message.removeprefix(before)
        return Refusal(self.status, message, param=param, code=self.code, headers=self.headers)

    def body(self) -> dict[str, Any]:
        """The object that OpenAI's clients expect."""
        kind = KINDS.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        }

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, dict(self.headers or {}))
