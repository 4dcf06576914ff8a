"""The options of `solve`, `solve_each` and `stream`, as one value, and what these calls refuse
before any work."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Protocol, TypedDict, Unpack

from annotated_types import Interval

from search.base import Search
from search.budget import UNLIMITED, Budget
from ttc.backend import Backend, check_needs
from ttc.checks import Options, check_choice, check_is, check_kind, check_whole
from ttc.errors import InvalidInput, refuse
from ttc.protocols import Extract, Verifier, score_range
from ttc.results import Problem, Progress, Result
from ttc.text.answers import extract_answer
from ttc.text.prompt import PromptTemplate
from ttc.text.roles import Messages
from ttc.text.thoughts import Setting

One = str | Problem | Messages
Many = Sequence[Problem] | list[str] | Sequence[Messages]
"""A problem, and several of one kind, as calls are given them."""

TopLogprobs = Annotated[int, Interval(ge=0, le=20)]


class Cancel(Protocol):
    """What says that a problem is to end, as `threading.Event` does."""

    def is_set(self) -> bool: ...


class SolveKeywords(TypedDict, total=False):
    """`SolveOptions` as keywords: its fields, with those of the budget beside them. Type checkers
    and editors read keywords from such a class alone, and derive none from fields (PEP 692); a test
    compares both."""

    verifier: Verifier | None
    seed: int
    template: PromptTemplate | None
    answer_kind: str
    extract: Extract | None
    thinking_marks: Setting
    end: Iterable[str]
    budget: Budget
    max_tokens: int | None
    max_generated_tokens: int | None
    max_calls: int | None
    max_tool_calls: int | None
    max_wall_s: float | None
    reserve: int
    final_text: str
    cancel: Cancel | None
    tools: Any
    schema: Any
    grammar: str | None
    top_logprobs: int


class CallKeywords(SolveKeywords, total=False):
    """All options of `search.solve`, for type checkers."""

    concurrency: int | None
    max_rows: int | None
    on_result: Callable[[Result], object] | None
    on_step: Callable[[Progress], object] | None


@dataclass(frozen=True, kw_only=True)
class SolveOptions(Options):
    """How problems are solved, beside the search and the backend: what one problem's result depends
    on.

    `search.solve` documents each field. Raises InvalidInput for a value that cannot be used.
    """

    verifier: Verifier | None = None
    seed: int = 0
    template: PromptTemplate | None = None
    answer_kind: str = "number"
    extract: Extract | None = None
    thinking_marks: Setting = None
    end: Iterable[str] = ()
    budget: Budget = UNLIMITED
    cancel: Cancel | None = None
    tools: Any = None
    schema: Any = None
    grammar: str | None = None
    top_logprobs: TopLogprobs = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        extract_answer("", self.answer_kind)  # refuses an unknown kind
        template, extract = self.template, self.extract
        check_is("template", template, PromptTemplate | None, "a PromptTemplate(instruction=...)")
        if extract is not None and not callable(extract):
            raise InvalidInput(
                f"extract={extract!r} cannot be called; give a function of the text, or "
                "answer_kind=..."
            )
        check_is("budget", self.budget, Budget, "a search.budget.Budget(max_tokens=...)")
        check_cancel(self.cancel)
        object.__setattr__(self, "end", as_strings("end", self.end))
        if self.tools is not None:
            from ttc.parts import handler

            object.__setattr__(self, "tools", handler("group", "tools").of(self.tools))
        self._check_grammar()

    @property
    def has_grammar(self) -> bool:
        """Whether answers keep to a schema or a grammar."""
        return self.schema is not None or self.grammar is not None

    def _check_grammar(self) -> None:
        """Raise InvalidInput for what cannot be had beside a schema or grammar."""
        others = {"tools": self.tools, "end": self.end, "final_text": self.budget.final_text}
        refuse(
            {
                f"{name}={value!r:.40} and a schema or grammar: such an answer ends where it is "
                "complete and holds nothing else; leave one of them out": value
                for name, value in others.items()
                if self.has_grammar
            }
        )

    @classmethod
    def of(cls, **keywords: Unpack[SolveKeywords]) -> SolveOptions:
        """The options that are given as keywords, those of the budget among them.

        Raises InvalidInput for a keyword that is none, and for limits beside a whole budget.
        """
        options: dict[str, Any] = dict(keywords)
        limits = {name: options.pop(name) for name in BUDGET_NAMES if name in options}
        for name in options:
            check_choice(name, OPTION_NAMES, f"{name} is no option")
        if limits and "budget" in options:
            raise InvalidInput(
                f"budget= holds {', '.join(limits)} already; give the limits in one of both ways"
            )
        if limits:
            options["budget"] = Budget(**limits)
        return cls(**options)


def check_cancel(cancel: object) -> None:
    """Raise InvalidInput for what does not say whether it is set."""
    fits = cancel is None or callable(getattr(cancel, "is_set", None))
    check_kind("cancel", cancel, fits, "a threading.Event()")


BUDGET_NAMES = tuple(field.name for field in fields(Budget))
OPTION_NAMES = (*(field.name for field in fields(SolveOptions)), *BUDGET_NAMES)


def check_keywords(call: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise InvalidInput for a keyword that a call does not take, with those that it does."""
    parameters = inspect.signature(call).parameters.values()
    of_the_call = [p.name for p in parameters if p.default is not p.empty]
    for name in names:
        check_choice(name, (*OPTION_NAMES, *of_the_call), f"{name} is no option of {call.__name__}")


def check_parts(search: Any, engine: Any, verifier: Any) -> None:
    """Refuse a search, engine or verifier that is none. Warns of a verifier with nothing to do."""
    check_is("search", search, Search, "a search, as BestOfN(n=8)")
    check_is("engine", engine, Backend, "a backend, as ttc.Engine(model, tokenizer)")
    tokenizer = getattr(engine, "tokenizer", None)
    fits = all(callable(getattr(tokenizer, name, None)) for name in ("encode", "decode"))
    check_kind(
        f"{type(engine).__name__}.tokenizer", tokenizer, fits, "one with `encode` and `decode`"
    )
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
            stacklevel=5,
        )


def check_scores(search: Search, verifier: Any) -> None:
    if (scores := score_range(verifier)) is not None:
        search.check_scores(type(verifier).__name__, *scores)


def check_concurrency(concurrency: int | None, max_rows: int | None) -> None:
    for name, limit in (("concurrency", concurrency), ("max_rows", max_rows)):
        if limit is not None:
            check_whole(name, limit, 1)


def as_strings(name: str, values: Any) -> tuple[str, ...]:
    """A list of strings; one string would be read as its letters."""
    if isinstance(values, str):
        raise InvalidInput(f"{name}={values!r} is one string; give a list of strings")
    check_is(name, values, Iterable, "a list of strings")
    strings = tuple(values)
    for value in strings:
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"{name} holds {value!r}; give strings with at least one character")
    return strings


def is_one(value: Any) -> bool:
    """Whether this is one problem and no list of them: a list with a message is a conversation."""
    return isinstance(value, str | Problem) or any(
        isinstance(one, Mapping) and ("role" in one or "content" in one)
        for one in (value if isinstance(value, list | tuple) else ())
    )


def as_problem(problem: Any) -> Problem:
    if isinstance(problem, Problem):
        return problem
    if isinstance(problem, str):
        return Problem(problem)
    if is_one(problem):
        return Problem.of_chat(problem, "problem")
    raise InvalidInput(
        f"problem is of type {type(problem).__name__}; give the question as a string, a "
        "Problem(question=...), or one conversation as a list of messages, [{'role': 'user', "
        "'content': ...}]"
    )


def as_problems(problems: Any, name: str = "problem") -> list[Problem]:
    """A list of problems; a dictionary would be read as its keys. name: of the argument."""
    if is_one(problems):
        raise InvalidInput(f"{name} is one problem; give a list, as {name}=[...]")
    if not isinstance(problems, Sequence) or isinstance(problems, bytes):
        raise InvalidInput(
            f"{name} is of type {type(problems).__name__}; give a question, a "
            "Problem(question=...), or a list of them, or of conversations"
        )
    chats = [isinstance(one, list | tuple) for one in problems]
    if any(chats) and not all(chats):
        other = chats.index(False)
        raise InvalidInput(
            f"{name}[{other}] is of type {type(problems[other]).__name__}, and others are "
            "conversations; give a list of one kind (a conversation among problems is a "
            "Problem.of_chat(messages))"
        )
    if any(chats):
        return [Problem.of_chat(chat, f"{name}[{place}]") for place, chat in enumerate(problems)]
    return [problem if isinstance(problem, Problem) else Problem(problem) for problem in problems]
