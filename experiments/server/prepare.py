"""From a request's body to problems with a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import randbelow
from typing import Any, ClassVar

from experiments.runs.grading import AnswerReading
from experiments.server.access import log
from experiments.server.offer import PLAIN
from experiments.server.refusal import Refusal
from experiments.server.requests import Body, ChatBody, CompletionBody, check_most
from search import Search
from search.budget import Budget
from search.config import SearchConfig
from search.options import Cancel, SolveOptions
from ttc.errors import ContextExceeded, InvalidInput
from ttc.parts import handler
from ttc.results import Problem
from ttc.text.answers import extract_answer
from ttc.text.chat import decoded
from ttc.text.conversation import Conversation, question_of, read_messages
from ttc.text.prompt import SET_HERE, PromptTemplate
from ttc.text.thinking_switch import EFFORT, SWITCHES, switches, variables
from ttc.text.thoughts import Thoughts

MAX_CALLS = 128
"""Calls of tools in one answer."""

CLIENT_LIMITS = ("max_generated_tokens", "max_wall_s")
"""What a request may say of its budget."""

OPTIONS = {
    "end": "stop",
    "schema": "response_format",
    "tools": "tools",
    "tools.choice": "tool_choice",
    "top_logprobs": "logprobs",
}
"""Which field of a request gives an option, where their names differ."""

NO_VARIABLES = ("self", "messages", "chat_template", "tools", "documents", "tokenizer_kwargs")
"""What a request may not give a chat template: another template, and what is not offered here."""


@dataclass(frozen=True)
class Prepared:
    """A request that can be answered.

    search: the name of its search. problems: each with how it is solved; they differ in their
    prompts alone. prompt_lengths: the tokens of each prompt. in_thought: whether the prompt of a
    chat begins a thought.
    """

    body: Body
    search: str
    problems: list[tuple[Problem, SearchConfig]]
    prompt_lengths: list[int]
    in_thought: bool

    @property
    def config(self) -> SearchConfig:
        return self.problems[0][1]

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
class TokenPrompt(RawPrompt):
    """A prompt that the client has sent as tokens; as a question it is their text."""

    numbers: tuple[int, ...] = ()

    def text(self, question: str, tokenizer: Any) -> str:
        return question

    def tokens(self, question: str, tokenizer: Any) -> list[int]:
        return list(self.numbers)


@dataclass(frozen=True)
class Preparer:
    """How requests are read.

    options: how problems are solved where a request does not say, and the most that one problem may
    cost.
    max_prompt_tokens: None for what the model's context holds. chat_options: further variables for
    the chat template. stopping: ends searches, which answer with what they have; the plain model's
    requests are refused then.
    """

    engine: Any
    options: SolveOptions
    max_prompt_tokens: int | None = None
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    stopping: Cancel | None = None

    def prepare(self, body: Body, name: str, search: Search) -> Prepared:
        """Raises Refusal for a request that cannot be answered."""
        if isinstance(body, ChatBody):
            param = "messages"
            questions, template = self._chat(body)
        else:
            assert isinstance(body, CompletionBody)
            param = "prompt"
            questions, template = _prompts(body), RawPrompt()
        options = replace(
            self._options(body, search, template), cancel=self.stopping if name != PLAIN else None
        )
        try:
            config = SearchConfig.of(self._thinking(body, search, template), self.engine, options)
        except InvalidInput as error:
            names = dict(OPTIONS)
            if body.reasoning_effort is not None:
                names["thinking"] = EFFORT
            if isinstance(body.search, dict):
                names |= {key: f"search.{key}" for key in body.search}
            of_tools = options.tools is not None
            param = "response_format" if options.has_grammar else "tools" if of_tools else "search"
            raise Refusal.of(error, param, names) from error
        try:
            problems = [self._problem(question, config) for question in questions]
            prompts = [self._prompt(its.template, problem.question) for problem, its in problems]
        except InvalidInput as error:
            raise Refusal.of(error, param) from error
        end = config.template.end_of_prompt(problems[-1][0].question, self.engine.tokenizer)
        thoughts = None if config.closes else config.thoughts
        in_thought = thoughts is not None and thoughts.begun(prompts[-1], end)
        return Prepared(body, name, problems, list(map(len, prompts)), in_thought)

    def _problem(
        self, question: str | Sequence[int], config: SearchConfig
    ) -> tuple[Problem, SearchConfig]:
        if isinstance(question, str):
            return Problem(question), config
        tokens = self.engine.limits.checked(question, "prompt")
        text = decoded(tokens, self.engine.tokenizer, special=True)
        return Problem(text), replace(config, template=TokenPrompt(numbers=tuple(tokens)))

    def _thinking(self, body: Body, search: Search, template: PromptTemplate) -> Search:
        """The search. Where the chat template takes no effort, thinking is on in its place for a
        model that thinks, and the field `reasoning_effort` changes nothing for another one."""
        tokenizer = self.engine.tokenizer
        effort = search.thinking not in ("auto", "on", "off")
        if not effort or template.raw or EFFORT in variables(tokenizer):
            return search
        thinks = Thoughts.of(tokenizer, self.options.thinking_marks) or switches(tokenizer)
        if not thinks and body.reasoning_effort is None:
            return search
        if not thinks:
            log.info("passed over %s=%s: the model does not think", EFFORT, search.thinking)
        return replace(search, thinking="on" if thinks else "auto")

    def _chat(self, body: ChatBody) -> tuple[list[str | list[int]], PromptTemplate]:
        try:
            messages = read_messages(
                [message.as_message() for message in body.messages], "messages"
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
        schema = body.response_format.schema_option
        reading = {} if body.answer_kind is None else self._reading(body.answer_kind)
        if schema is not None and not reading:
            reading = {"extract": None}  # votes are on the JSON
        settings = reading | {
            "verifier": self.options.verifier if search.needs_verifier else None,
            "seed": randbelow(2**31) if body.seed is None else body.seed,
            "template": template,
            "end": body.stops,
            "budget": self._budget(body),
            "tools": self._tools(body),
            "schema": schema,
            "top_logprobs": body.kept_logprobs or 0,
        }
        try:
            return replace(self.options, **settings)
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
        if not isinstance(body, ChatBody) or body.tool_choice == "none":
            return None
        settings: dict[str, Any] = {}
        if "tool_choice" in body.model_fields_set:
            settings["choice"] = body.wanted_tool
        if "parallel_tool_calls" in body.model_fields_set:
            settings["parallel"] = body.parallel_tool_calls
        try:
            if not body.tools and self.options.tools is not None:
                return self.options.tools.changed(**settings)
            if body.tools:
                schemas = [
                    tool.model_dump(exclude_unset=True, exclude={"function": {"strict"}})
                    for tool in body.tools
                ]
                strict = any(tool.function.strict for tool in body.tools)
                settings |= {"strict": strict, "calls_per_branch": MAX_CALLS}
                return handler("group", "tools")(schemas, **settings)
        except InvalidInput as error:
            raise Refusal.of(error, "tools", {"choice": "tool_choice"}) from error
        if settings.get("choice", "auto") != "auto":
            message = f"tool_choice={body.wanted_tool}, and there are no tools; give tools too"
            raise Refusal(400, message, param="tool_choice")
        return None

    def _budget(self, body: Body) -> Budget:
        """What the server allows, or less."""
        budget = self.options.budget
        limits = {name: getattr(body, name) for name in CLIENT_LIMITS}
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        for name, limit in limits.items():
            check_most(name, limit, getattr(budget, name))
        return replace(budget, **limits)

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


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    prompts = body.prompts
    if body.stream and len(prompts) > 1:
        raise Refusal(
            400, f"prompt holds {len(prompts)} texts; give one, or leave stream out", param="prompt"
        )
    return prompts
