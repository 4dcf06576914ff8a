"""How a problem is solved: by which search and verifier, from which prompt and seed, within which budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from search.base import Case, Search
from search.options import as_strings, check_parts, check_reading, checked_extract
from search.rating import Rater
from ttc.checks import check_fields
from ttc.errors import InvalidInput
from ttc.protocols import Backend, Extract, Problem, Verifier
from ttc.sampling import random_key
from ttc.text.answers import extract_answer
from ttc.text.prompt import PromptTemplate
from ttc.text.reader import AnswerReader
from ttc.text.thoughts import Setting, Thoughts


@dataclass(frozen=True)
class Budget:
    """What one problem may cost.

    max_tokens: generated plus verifier tokens, None for no limit. max_generated_tokens, max_calls: generated tokens
    alone, and expansions, likewise. max_wall_s: seconds from the start of the search, after which nothing is begun.
    reserve: the last of these tokens, and the last call, which are kept for the final answer; no time is.
    final_text: what is put after an unfinished branch to ask for its answer.
    """

    max_tokens: int | None = None
    max_generated_tokens: int | None = None
    max_calls: int | None = None
    max_wall_s: float | None = None
    reserve: int = 0
    final_text: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("max_tokens", "max_generated_tokens", "max_calls"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidInput(f"{name}={value} must be at least 1")
        if self.max_wall_s is not None and not self.max_wall_s > 0:
            raise InvalidInput(f"max_wall_s={self.max_wall_s} must be more than 0")
        if self.reserve < 0:
            raise InvalidInput(f"reserve={self.reserve} must be 0 or more")
        if self.reserve and not any((self.max_tokens, self.max_generated_tokens, self.max_calls)):
            raise InvalidInput(f"reserve={self.reserve} is a part of a budget; give max_tokens or max_calls too")
        for name in ("max_tokens", "max_generated_tokens"):
            if (value := getattr(self, name)) is not None and self.reserve >= value:
                raise InvalidInput(f"reserve={self.reserve} leaves nothing of {name}={value} to search with; give less")
        if self.final_text and not self.reserve:
            raise InvalidInput("final_text asks for an answer with the reserve; give reserve=N tokens too")


@dataclass(frozen=True, eq=False)
class Recipe:
    """All that a problem's result depends on, beside the problem and the backend.

    extract: reads the answer out of a text, and says which answers are the same. end: strings that finish a branch.
    thoughts: how the model's thoughts are told from its answers, None where all is answer.
    repeat: how many problems without an id ask the same question before this one in their list, so that it gets samples
        of its own.
    stops: those of `end` that the template's form brings along; texts leave them out.
    """

    search: Search
    rater: Rater
    seed: int
    template: PromptTemplate
    extract: AnswerReader
    end: tuple[str, ...]
    budget: Budget
    repeat: int = 0
    thoughts: Thoughts | None = None
    stops: tuple[str, ...] = ()

    @classmethod
    def make(
        cls,
        search: Search,
        engine: Backend,
        *,
        verifier: Verifier | None = None,
        seed: int = 0,
        template: PromptTemplate | None = None,
        answer_kind: str = "number",
        extract: Extract | None = None,
        thinking_marks: Setting = None,
        end: Sequence[str] = (),
        max_tokens: int | None = None,
        max_generated_tokens: int | None = None,
        max_calls: int | None = None,
        max_wall_s: float | None = None,
        reserve: int = 0,
        final_text: str = "",
    ) -> Recipe:
        """The options of `search.solve`. Raises InvalidInput for what the search or the engine cannot use."""
        check_parts(search, engine, verifier)
        check_reading(template, extract, answer_kind, seed)
        budget = Budget(max_tokens, max_generated_tokens, max_calls, max_wall_s, reserve, final_text)
        extract_answer("", answer_kind)  # refuses an unknown kind before any work
        thoughts = Thoughts.of(engine.tokenizer, thinking_marks)
        reading = reader(extract, answer_kind)
        if thoughts is not None:
            reading = replace(reading, marks=thoughts.marks)
        template = template or PromptTemplate()
        stops = template.ends(engine.tokenizer)
        return cls(
            search,
            Rater(verifier),
            seed,
            template,
            reading,
            tuple(dict.fromkeys((*as_strings("end", end), *stops))),
            budget,
            thoughts=thoughts,
            stops=stops,
        )

    def seed_of(self, problem: Problem) -> int:
        """The seed of a problem's branches: the same whatever else is solved, and in whatever order."""
        name = problem.id or problem.question
        return random_key(self.seed, name, self.repeat) if self.repeat else random_key(self.seed, name)

    def case(self, problem: Problem) -> Case:
        """The problem as its search sees it."""
        rng = np.random.default_rng(random_key(self.seed_of(problem), "search"))
        return Case(problem.question, self.end, self.extract.among(problem.metadata.get("choices")), rng, self.thoughts)


def reader(extract: Extract | None, answer_kind: str) -> AnswerReader:
    """How answers are read: a `AnswerReader` as it is, another function with its errors checked, or by their kind."""
    if isinstance(extract, AnswerReader):
        return extract
    return AnswerReader(answer_kind) if extract is None else AnswerReader(extract=checked_extract(extract))
