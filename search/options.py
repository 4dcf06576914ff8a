"""What `solve`, `solve_each` and `stream` take, and the refusal of what they cannot use."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

from search.base import Search
from ttc.checks import check_kind, check_whole
from ttc.errors import InvalidInput
from ttc.protocols import Backend, Extract, Problem, Step, Verifier, check_needs
from ttc.results import Progress, Result
from ttc.text.prompt import PromptTemplate
from ttc.text.thoughts import Setting


class SearchOptions(TypedDict, total=False):
    """The options of `search.stream` and `search.solve_each`; `search.solve` says what each means."""

    verifier: Verifier | None
    seed: int
    template: PromptTemplate | None
    answer_kind: str
    extract: Extract | None
    thinking_marks: Setting
    end: Sequence[str]
    max_tokens: int | None
    max_generated_tokens: int | None
    max_calls: int | None
    max_wall_s: float | None
    reserve: int
    final_text: str


class SolveOptions(SearchOptions, total=False):
    """The options of `search.solve`."""

    concurrency: int | None
    max_rows: int | None
    on_result: Callable[[Result], object] | None
    on_step: Callable[[Progress], object] | None


def check_parts(search: Any, engine: Any, verifier: Any) -> None:
    """Refuse a search, an engine or a verifier that is none, by name. Warns of a verifier that has nothing to do."""
    check_kind("search", search, isinstance(search, Search), "a search, as BestOfN(n=8)")
    backend = all(hasattr(engine, name) for name in ("roots", "fork", "generate", "release"))
    check_kind("engine", engine, backend, "a backend, as ttc.Engine(model, tokenizer)")
    if verifier is not None:
        check_kind("verifier", verifier, callable(getattr(verifier, "rate", None)), "a verifier, as SelfVerifier()")
    check_needs(search, engine)
    if search.needs_verifier:
        check_needs(verifier, engine)
    name = type(search).__name__
    if search.needs_verifier and verifier is None:
        raise InvalidInput(f"{name} selects by score; give it verifier=...")
    if not search.needs_verifier and verifier is not None:
        warnings.warn(
            f"{name} does not rate branches, so {type(verifier).__name__} is not used; leave the verifier out",
            stacklevel=4,
        )


def statistics_option(engine: Backend, step: Step) -> dict[str, bool]:
    """What `generate` is told for `Step.statistics`; nothing where they are not asked for."""
    asked = step.statistics
    check_kind("Step.statistics", asked, isinstance(asked, bool), "True or False")
    if not asked:
        return {}
    if "statistics" not in inspect.signature(engine.generate).parameters:
        raise InvalidInput(
            f"Step.statistics=True, and {type(engine).__name__}.generate offers no statistics; leave it out, or use "
            "ttc.Engine"
        )
    return {"statistics": True}


def check_reading(template: Any, extract: Any, answer_kind: Any, seed: Any) -> None:
    """Refuse a template that is none, a way of reading answers that is none, and a seed that is no number."""
    check_whole("seed", seed)
    check_kind("answer_kind", answer_kind, isinstance(answer_kind, str), "its name, as 'number'")
    if template is not None:
        check_kind("template", template, isinstance(template, PromptTemplate), "a PromptTemplate(instruction=...)")
    if extract is not None and not callable(extract):
        raise InvalidInput(f"extract={extract!r} cannot be called; give a function of the text, or answer_kind=...")


def checked_extract(extract: Extract) -> Extract:
    """A caller's `extract` whose errors and answers are checked as it is used."""

    def read(text: str) -> str | None:
        try:
            answer = extract(text)
        except Exception as error:
            raise InvalidInput(f"extract raised {type(error).__name__}: {error}, on the text {text!r:.80}") from error
        check_kind("the answer of extract", answer, answer is None or isinstance(answer, str), "text, or None for none")
        return answer

    return read


def check_room(concurrency: int | None, max_rows: int | None) -> None:
    """Refuse numbers of problems or rows that nothing could run with."""
    for name, most in (("concurrency", concurrency), ("max_rows", max_rows)):
        if most is not None:
            check_whole(name, most, 1)


def as_strings(name: str, given: Any) -> tuple[str, ...]:
    """A list of strings; one string would be read as its letters."""
    if isinstance(given, str):
        raise InvalidInput(f"{name}={given!r} is one string; give a list of strings")
    check_kind(name, given, isinstance(given, Iterable), "a list of strings")
    strings = tuple(given)
    for value in strings:
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"{name} holds {value!r}; give strings with at least one character")
    return strings


def as_problem(given: Any) -> Problem:
    """A question or a Problem; anything else is refused by name."""
    if isinstance(given, str):
        return Problem(given)
    if isinstance(given, Problem):
        return given
    raise InvalidInput(
        f"problem is of type {type(given).__name__}; give the question as a string, or a Problem(question=...)"
    )


def as_problems(given: Any) -> list[Problem]:
    """A list of problems; a dictionary would be read as its keys. What is no text is left for its own result to say."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidInput(
            f"problem is of type {type(given).__name__}; give a question, a Problem(question=...), or a list of them"
        )
    return [problem if isinstance(problem, Problem) else Problem(problem) for problem in given]
