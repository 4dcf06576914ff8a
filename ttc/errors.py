"""The exceptions that users meet. Each message names the value, the limit and the way out."""

from __future__ import annotations

from typing import Any


class TTCError(Exception):
    """Base of every error that this project raises on purpose."""


class InvalidInput(TTCError, ValueError):
    """An argument, a prompt, a data set row or a configuration that cannot be used."""


class MissingPart(InvalidInput):
    """A part of this project that is needed and was deleted (`ttc.parts`)."""


class Unsupported(InvalidInput):
    """Something that a backend does not have, which another one may."""


class ContextExceeded(InvalidInput):
    """More tokens than the model's context has room for."""


class UnsupportedModel(TTCError):
    """A model whose attention the engine cannot serve, or a place that holds no model."""


class OutOfMemory(TTCError):
    """A byte budget that is too small for the work asked for."""


class VerifierError(TTCError):
    """A verifier that raised, or returned NaN or the wrong number of scores."""


class UnusableScores(VerifierError):
    """Scores that a setting of the search cannot use, as those below zero for a product."""


class BudgetExceeded(TTCError):
    """A search that asked for more tokens or model calls than its budget allows."""


class RemoteError(TTCError):
    """A server that cannot be reached, that refuses a request, or whose answers cannot be used."""


class RequestRefused(RemoteError):
    """A request that a server will never answer as it is."""


class ContentRefused(RequestRefused):
    """A request that is refused for what is in it, which says nothing of other requests."""


class BranchRefused(RemoteError):
    """What a server refuses of one branch, for what is in it: other branches go on.

    branch: whose step it was.
    """

    def __init__(self, message: str, branch: Any):
        super().__init__(message)
        self.branch = branch


def number_of(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun, as messages say it: `1 problem`. plural: where that is not the noun
    with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
