"""What the calls of this package refuse, by name, before any work."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from search.base import Search
from ttc.checks import check_is, check_kind, check_whole
from ttc.errors import InvalidInput
from ttc.protocols import Problem, check_needs, score_range


def check_parts(search: Any, engine: Any, verifier: Any) -> None:
    """Refuse a search, engine or verifier that is none. Warns of a verifier with nothing to do."""
    check_is("search", search, Search, "a search, as BestOfN(n=8)")
    fits = all(hasattr(engine, name) for name in ("roots", "fork", "generate", "release"))
    check_kind("engine", engine, fits, "a backend, as ttc.Engine(model, tokenizer)")
    if verifier is not None:
        fits = callable(getattr(verifier, "rate", None))
        check_kind("verifier", verifier, fits, "a verifier, as SelfVerifier()")
    check_needs(search, engine)
    name = type(search).__name__
    if search.needs_verifier:
        check_needs(verifier, engine)
        if verifier is None:
            raise InvalidInput(f"{name} selects by score; give it verifier=...")
        check_scores(search, verifier)
    elif verifier is not None:
        warnings.warn(
            f"{name} does not rate branches, so {type(verifier).__name__} is not used; leave the "
            "verifier out",
            stacklevel=4,
        )


def check_scores(search: Search, verifier: Any) -> None:
    if (scores := score_range(verifier)) is not None:
        search.check_scores(type(verifier).__name__, *scores)


def check_concurrency(concurrency: int | None, max_rows: int | None) -> None:
    for name, limit in (("concurrency", concurrency), ("max_rows", max_rows)):
        if limit is not None:
            check_whole(name, limit, 1)


def as_strings(name: str, given: Any) -> tuple[str, ...]:
    """A list of strings; one string would be read as its letters."""
    if isinstance(given, str):
        raise InvalidInput(f"{name}={given!r} is one string; give a list of strings")
    check_is(name, given, Iterable, "a list of strings")
    strings = tuple(given)
    for value in strings:
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"{name} holds {value!r}; give strings with at least one character")
    return strings


def as_problem(given: Any) -> Problem:
    if isinstance(given, str):
        return Problem(given)
    if isinstance(given, Problem):
        return given
    raise InvalidInput(
        f"problem is of type {type(given).__name__}; give the question as a string, or a "
        "Problem(question=...)"
    )


def as_problems(given: Any) -> list[Problem]:
    """A list of problems; a dictionary would be read as its keys."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidInput(
            f"problem is of type {type(given).__name__}; give a question, a Problem(question=...), "
            "or a list of them"
        )
    return [problem if isinstance(problem, Problem) else Problem(problem) for problem in given]
