"""From a request's body to problems with a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from secrets import randbelow
from typing import Any, ClassVar

from experiments.runs.grading import AnswerReading
from experiments.server.refusal import Refusal
from experiments.server.requests import Body, ChatBody, CompletionBody, check_most
from search import Search
from search.budget import Budget
from search.config import SearchConfig
from search.options import SolveOptions
from ttc.errors import ContextExceeded, InvalidInput
from ttc.parts import handler
from ttc.results import Problem
from ttc.text.answers import extract_answer
from ttc.text.conversation import Conversation, question_of, read_messages
from ttc.text.prompt import SET_HERE, PromptTemplate
from ttc.text.thinking_switch import EFFORT, SWITCHES

MAX_CALLS = 128
"""Calls of tools in one answer."""

CLIENT_LIMITS = ("max_generated_tokens", "max_wall_s")
"""What a request may say of its budget."""

OPTIONS = {"end": "stop", "schema": "response_format", "tools": "tools"}
"""Which field of a request gives an option, where their names differ."""

NO_VARIABLES = ("self", "messages", "chat_template", "tools", "documents", "tokenizer_kwargs")
"""What a request may not give a chat template: another template, and what is not offered here."""


@dataclass(frozen=True)
class Prepared:
    """A request that can be answered.

    search: the name of its search. prompt_lengths: the tokens of each prompt. in_thought: whether
    the prompt of a chat begins a thought.
    """

    body: Body
    search: str
    config: SearchConfig
    problems: list[Problem]
    prompt_lengths: list[int]
    in_thought: bool

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(self.prompt_lengths)


@dataclass(frozen=True)
class RawPrompt(PromptTemplate):
    """A prompt of /v1/completions: what the client has sent, and nothing around it."""

    instruction: str = "{question}"
    raw: bool = True

    what: ClassVar[str] = "the prompt"


@dataclass(frozen=True)
class Preparer:
    """How requests are read.

    options: how problems are solved where a request does not say, and the most that one problem may
    cost.
    max_prompt_tokens: None for what the model's context holds. chat_options: further variables for
    the chat template.
    """

    engine: Any
    options: SolveOptions
    max_prompt_tokens: int | None = None
    chat_options: Mapping[str, Any] = field(default_factory=dict)

    def prepare(self, body: Body, name: str, search: Search) -> Prepared:
        """Raises Refusal for a request that cannot be answered."""
        if isinstance(body, ChatBody):
            param = "messages"
            questions, template = self._chat(body)
        else:
            assert isinstance(body, CompletionBody)
            param = "prompt"
            questions, template = _texts(body)
        options = self._options(body, search, template)
        try:
            config = SearchConfig.of(search, self.engine, options)
        except InvalidInput as error:
            names = dict(OPTIONS)
            if body.reasoning_effort is not None:
                names["thinking"] = EFFORT
            if isinstance(body.search, dict):
                names |= {key: f"search.{key}" for key in body.search}
            raise Refusal.of(error, names=names) from error
        try:
            prompts = [self._prompt(config.template, question) for question in questions]
        except InvalidInput as error:
            raise Refusal.of(error, param) from error
        end = config.template.end_of_prompt(questions[-1], self.engine.tokenizer)
        thoughts = None if config.closes else config.thoughts
        in_thought = thoughts is not None and thoughts.begun(prompts[-1], end)
        return Prepared(
            body, name, config, list(map(Problem, questions)), list(map(len, prompts)), in_thought
        )

    def _chat(self, body: ChatBody) -> tuple[list[str], PromptTemplate]:
        try:
            messages = read_messages(
                [message.model_dump(exclude_unset=True) for message in body.messages], "messages"
            )
        except InvalidInput as error:
            raise Refusal.of(error, "messages") from error
        for name in body.chat_template_kwargs:
            if name in NO_VARIABLES or name in SET_HERE:
                message = f"chat_template_kwargs.{name} is no variable of a template; leave it out"
                raise Refusal(400, message, param="chat_template_kwargs")
        of_server = dict(self.chat_options)
        if body.reasoning_effort is not None:
            for name in (EFFORT, *SWITCHES):
                of_server.pop(name, None)
        options = {**of_server, **body.chat_template_kwargs}
        try:
            template = Conversation.of(messages, PromptTemplate(options=options))
        except InvalidInput as error:
            raise Refusal.of(error, "chat_template_kwargs") from error
        return [question_of(messages)], template

    def _options(self, body: Body, search: Search, template: PromptTemplate) -> SolveOptions:
        reading = {} if body.answer_kind is None else self._reading(body.answer_kind)
        given = reading | {
            "verifier": self.options.verifier if search.needs_verifier else None,
            "seed": randbelow(2**31) if body.seed is None else body.seed,
            "template": template,
            "end": body.stops,
            "budget": self._budget(body),
            "tools": self._tools(body),
            "schema": body.response_format.schema_option,
        }
        try:
            return replace(self.options, **given)
        except InvalidInput as error:
            raise Refusal.of(error, "response_format", OPTIONS) from error

    def _reading(self, kind: str) -> dict[str, Any]:
        try:
            extract_answer("", kind)  # refuses an unknown kind
        except InvalidInput as error:
            raise Refusal.of(error, "answer_kind") from error
        return AnswerReading(kind).options()

    def _tools(self, body: Body) -> Any:
        """Those that the client runs, else those of the server."""
        if not isinstance(body, ChatBody):
            return None
        if not body.tools:
            return self.options.tools
        if body.tool_choice == "none":
            return None
        try:
            schemas = [
                tool.model_dump(exclude_unset=True, exclude={"function": {"strict"}})
                for tool in body.tools
            ]
            strict = any(tool.function.strict for tool in body.tools)
            return handler("group", "tools")(schemas, calls_per_branch=MAX_CALLS, strict=strict)
        except InvalidInput as error:
            raise Refusal.of(error, "tools") from error

    def _budget(self, body: Body) -> Budget:
        """What the server allows, or less."""
        budget = self.options.budget
        given = {
            name: value for name in CLIENT_LIMITS if (value := getattr(body, name)) is not None
        }
        for name, value in given.items():
            check_most(name, value, getattr(budget, name))
        return replace(budget, **given)

    def _prompt(self, template: PromptTemplate, question: str) -> list[int]:
        """Raises InvalidInput for a prompt that is too long."""
        tokens = template.tokens(question, self.engine.tokenizer)
        self.engine.limits.check_prompt(len(tokens))
        limit = self.max_prompt_tokens
        if limit is not None and len(tokens) > limit:
            raise ContextExceeded(
                f"the prompt has {len(tokens)} tokens, and this server takes {limit}; shorten it"
            )
        return tokens


def _texts(body: CompletionBody) -> tuple[list[str], PromptTemplate]:
    texts = body.prompts
    if body.stream and len(texts) > 1:
        raise Refusal(
            400, f"prompt holds {len(texts)} texts; give one, or leave stream out", param="prompt"
        )
    return texts, RawPrompt()
