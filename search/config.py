"""How a problem is solved on a backend: by which search, and with which options."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from search.base import Case, Search
from search.options import SolveOptions, check_parts
from search.rating import Rater
from ttc.backend import Backend
from ttc.checks import check_is
from ttc.errors import InvalidInput, refuse
from ttc.origin import at, origin
from ttc.parts import find, handler
from ttc.protocols import Extract
from ttc.results import Problem
from ttc.sampling import random_key
from ttc.step import Grammar, Thinking
from ttc.text.equality import AnswerReader
from ttc.text.prompt import PromptTemplate
from ttc.text.thoughts import Thoughts


@dataclass(frozen=True, eq=False)
class SearchConfig:
    """All that a problem's result depends on, beside the problem and the backend.

    reader: reads the answer out of a text, and says which answers are the same.
    thoughts: how thoughts are told from answers, None where all is answer.
    stops: strings of the template's form that finish a branch; texts leave them out.
    closes: whether thoughts are ended as they begin, as thinking is off and the template has no
        switch for it.
    limited: whether thoughts have limits of their own, which a backend that `writes_ahead` cannot
        keep.
    stops_loops: whether tokens that go in circles end a thought or a branch.
    tools: the tools that branches may call, None for none.
    grammar: what answers keep to, None for none.
    repeat: how many problems without an id ask the same before this one in their list; it gets
        samples of its own.
    """

    search: Search
    options: SolveOptions
    template: PromptTemplate
    reader: AnswerReader
    thoughts: Thoughts | None = None
    stops: tuple[str, ...] = ()
    closes: bool = False
    limited: bool = True
    stops_loops: bool = False
    tools: Any = None
    grammar: Grammar | None = None
    repeat: int = 0
    models: tuple[str, ...] = ()

    @classmethod
    def of(cls, search: Search, engine: Backend, options: SolveOptions) -> SearchConfig:
        """The configuration for an engine. Raises InvalidInput for what either cannot use."""
        check_parts(search, engine, options.verifier)
        thoughts = Thoughts.of(engine.tokenizer, options.thinking_marks)
        grammar = _grammar(search, engine, options, thoughts)
        extract = options.extract
        if extract is None and options.schema is not None:
            extract = handler("answers", "json")
        reader = reader_of(extract, options.answer_kind)
        if thoughts is not None:
            reader = replace(reader, marks=thoughts.marks)
        template = (options.template or PromptTemplate()).asking(
            reader.kind if reader.extract is None else "text"
        )
        limited = not engine.writes_ahead
        config = cls(
            search,
            options,
            template,
            reader,
            thoughts,
            limited=limited,
            stops_loops=_stops_loops(search.stop_loops, engine, limited, thoughts),
            grammar=grammar,
            models=tuple(engine.models),
        )
        return config._prompted(template, engine)

    def for_problem(self, problem: Problem, engine: Backend) -> SearchConfig:
        """The same with the prompt of a problem that is a chat. Raises InvalidInput as `of`."""
        if problem.messages is None:
            return self
        from ttc.text.conversation import Conversation

        return self._prompted(Conversation.of(problem.messages, self.options.template), engine)

    def _prompted(self, template: PromptTemplate, engine: Backend) -> SearchConfig:
        """With a template, its thinking switched and tools told of, and what depends on that."""
        search, options = self.search, self.options
        closes = False
        if options.tools is not None and options.tools.choice != "auto":
            if search.thinking not in ("auto", "off"):
                raise InvalidInput(
                    f"thinking={search.thinking}, and tools.choice={options.tools.choice} begins "
                    "each answer with a call; leave one of them out"
                )
            search = replace(search, thinking="off")
        if search.thinking != "auto":
            from ttc.text.thinking_switch import switched

            template, closes = switched(template, search.thinking, engine.tokenizer, self.thoughts)
        if closes and not self.limited:
            raise InvalidInput(
                "thinking=off, and the chat template has no switch for it; on this server no "
                "thought can be ended, so use a model whose template has one, or thinking=auto"
            )
        if options.top_logprobs and not engine.keeps_alternatives:
            raise InvalidInput(
                f"top_logprobs={options.top_logprobs}: this backend tells nothing of other tokens "
                "than those that it wrote; give 0, or use ttc.Engine"
            )
        chat, grammar = None, self.grammar
        if options.tools is not None:
            if len(engine.models) > 1:
                raise InvalidInput(
                    "tools are called in one model's format; give one engine, or leave tools out"
                )
            chat = handler("tool_use", "chat").of(options.tools, template, engine.tokenizer)
            template = chat.template
            if chat.tools.strict:
                grammar = handler("answers", "calls")(chat, engine, self.thoughts)
            elif chat.opening:
                grammar = _must_call(chat, engine, self.thoughts)
            if grammar is not None:
                chat = replace(chat, opening="")
                if search.puts_words:
                    raise InvalidInput(
                        f"{type(search).__name__} puts words of its own into answers, which no "
                        "call then keeps to as tools.choice or tools.strict asks; leave that out, "
                        "or use another search"
                    )
        stops = () if options.has_grammar else template.ends(engine.tokenizer)
        return replace(
            self, template=template, stops=stops, closes=closes, tools=chat, grammar=grammar
        )

    @property
    def rater(self) -> Rater:
        return Rater(self.options.verifier)

    @property
    def end(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.options.end, *self.stops)))

    def seed_of(self, problem: Problem) -> int:
        """The same whatever else is solved, and in whatever order."""
        name, seed = problem.id or problem.question, self.options.seed
        return random_key(seed, name, self.repeat) if self.repeat else random_key(seed, name)

    def case(self, problem: Problem) -> Case:
        rng = np.random.default_rng(random_key(self.seed_of(problem), "search"))
        reader = self.reader.among(problem.metadata.get("choices"))
        thinking = self.search.thinks(self.thoughts) if self.limited else None
        if self.closes:
            thinking = Thinking(0)
        if self.grammar is not None and thinking is not None:
            thinking = replace(thinking, final="")  # the words would stand in the answer
        return Case(problem.question, self.end, reader, rng, self.thoughts, thinking, self.models)


def _grammar(
    search: Search, engine: Backend, options: SolveOptions, thoughts: Thoughts | None
) -> Grammar | None:
    """What a schema or grammar asks of answers. Raises InvalidInput where it cannot be had."""
    if not options.has_grammar:
        return None
    refuse(
        {
            "a schema or grammar is kept to in one model's tokens; give one engine, or leave it "
            "out": len(engine.models) > 1,
            f"{type(search).__name__} puts words of its own into answers, which then keep to no "
            "schema or grammar; leave that out, or use another search": search.puts_words,
            f"{type(search).__name__} writes answers step by step, and a server begins a schema "
            "anew with each step; use a search that writes whole answers, as best_of_n, or a "
            "ttc.Engine": engine.served and search.in_steps,
        }
    )
    make = handler("answers", "grammar").of
    grammar: Grammar = make(options.schema, options.grammar, engine, thoughts)
    return grammar


def _must_call(chat: Any, engine: Backend, thoughts: Thoughts | None) -> Grammar | None:
    """What makes the model call a tool, where its calls and its tokens can be masked; else it is
    given the beginning of one."""
    calls = find("answers", "calls")
    with suppress(InvalidInput, ImportError):
        return None if calls is None else calls(chat, engine, thoughts)
    return None


def _stops_loops(
    setting: bool | None, engine: Backend, limited: bool, thoughts: Thoughts | None
) -> bool:
    """By default for models that think, where the backend can do so."""
    able = limited and engine.joins
    if setting and not able:
        raise InvalidInput(
            "stop_loops=true, and this backend writes its texts without looking for loops; leave "
            "it out, or use a ttc.Engine or a server that tells its tokens"
        )
    return able and (thoughts is not None if setting is None else setting)


def reader_of(extract: Extract | None, answer_kind: str) -> AnswerReader:
    """An `AnswerReader`, another function with its errors checked, or by kind."""
    if isinstance(extract, AnswerReader):
        return extract
    return AnswerReader(answer_kind) if extract is None else AnswerReader(extract=checked(extract))


def checked(extract: Extract) -> Extract:
    def read(text: str) -> str | None:
        try:
            answer = extract(text)
        except (Exception, SystemExit) as error:
            raise InvalidInput(
                f"extract raised {type(error).__name__}: {error}, on the text {text!r:.80}"
                f"{at(origin(error))}"
            ) from error
        check_is("the answer of extract", answer, str | None, "text, or None for none")
        return answer

    return read
