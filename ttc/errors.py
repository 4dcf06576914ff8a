"""The exceptions that users meet. Each message names the value, the limit and the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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


def refuse(faults: Mapping[str, object], error: type[Exception] = InvalidInput) -> None:
    """Raise the first message of a table whose fault is there (whose value is true)."""
    for message, there in faults.items():
        if there:
            raise error(message)


@contextmanager
def refusing(
    kinds: type[BaseException] | tuple[type[BaseException], ...],
    message: str,
    error: type[TTCError] = InvalidInput,
    *,
    but: type[TTCError] | tuple[()] = (),
    words: Callable[[Any], object] = lambda raised: getattr(raised, "strerror", None) or raised,
) -> Iterator[None]:
    """Tell what others raise, as while a file is read, in words of this project.

    message: `{error}` in it becomes `words` of it, `{kind}` its type. but: errors that stay as they
    are.
    """
    try:
        yield
    except but:
        raise
    except kinds as raised:
        text = message.replace("{kind}", type(raised).__name__)
        raise error(text.replace("{error}", str(words(raised)))) from raised


class on_failure:
    """Take back what was begun, where the block raises anything. A class, since it stands on the
    path of each token, where a generator costs twice the calls."""

    def __init__(self, undo: Callable[..., object], *arguments: object):
        self.undo = undo
        self.arguments = arguments

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.undo(*self.arguments)


def number_of(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun, as messages say it: `1 problem`. plural: where that is not the noun
    with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
