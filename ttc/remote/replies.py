"""What a server answers to a completion request, read and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, isnan, nan
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ttc.errors import ContentRefused, RemoteError, RequestRefused, number_of, refuse
from ttc.remote.client import Passing, short_repr
from ttc.text.chat import decoded

TOP_K = 20
"""Likeliest tokens whose mean log-probability is kept as a statistic."""
TOKEN_ID = "token_id:"
"""What servers write before the number of a token in the place of its text."""
ROUNDING = 1e-3
"""So far above 0 a log-probability may be by rounding; it counts as 0."""
LEAST = -1e5
"""No log-probability is lower."""
LONGEST_TOKEN = 1024
"""Characters of the longest token."""
MOST_TOKENS = 10**9
"""No prompt and no answer has more."""
SPARE_TOKENS = 64
"""So many more tokens than twice a text's a server may count, or it may have here: each cuts texts
in its own way."""


@dataclass(frozen=True)
class TokenFigures:
    """What a server says of one token.

    logprob: NaN where there is none (the first token of a prompt). likeliest: log-probabilities of
    the likeliest tokens, or of those that were asked for, by their names. token: its number, where
    the server gives one.
    """

    logprob: float
    likeliest: dict[str, float] = field(default_factory=dict)
    token: int | None = None

    @property
    def top1(self) -> float:
        return exp(max(self.likeliest.values(), default=nan))

    @property
    def top_k_logprob(self) -> float:
        """The mean log-probability of the `TOP_K` likeliest tokens; NaN where fewer are known."""
        values = sorted(self.likeliest.values(), reverse=True)[:TOP_K]
        return sum(values) / TOP_K if len(values) == TOP_K else nan


@dataclass(frozen=True)
class Reply:
    """One completion; None is what the server does not say.

    tokens: its token numbers. finish: "stop" or "length". stopped_by: the string or the token that
    ended it. figures: of each of the server's tokens, [] without log-probabilities.
    prompt_tokens, cached_tokens, generated_tokens: as the server counts.
    thought: what the server has kept apart from the text; its tokens are among `tokens`.
    """

    text: str
    tokens: list[int] | None
    finish: str
    stopped_by: str | int | None
    figures: list[TokenFigures]
    prompt_tokens: int | None
    cached_tokens: int
    generated_tokens: int | None
    thought: str = ""


# ---------------------------------------------------------------- the form of an answer


def _logprob(value: Any) -> float:
    if value is None:
        return nan
    if type(value) not in (int, float) or not LEAST <= value <= ROUNDING:
        raise ValueError("no log-probability")
    return min(float(value), 0.0)


Logprob = Annotated[float, BeforeValidator(_logprob)]
TokenCount = Annotated[int, Field(ge=0, le=MOST_TOKENS)]


class AnswerPart(BaseModel):
    model_config = ConfigDict(strict=True)

    @classmethod
    def of(cls, data: Any) -> Self:
        """Raises Passing for data of another form."""
        try:
            return cls.model_validate(data)
        except ValidationError as errors:
            first = errors.errors()[0]
            place = ".".join(map(str, first["loc"])) or "all of it"
            raise Passing(
                f"gave an answer that cannot be read ({place}: {first['msg']}): "
                f"{short_repr(first['input'])}; is base_url right?"
            ) from errors


class ReadCached(AnswerPart):
    cached_tokens: TokenCount | None = None


class ReadUsage(AnswerPart):
    prompt_tokens: TokenCount | None = None
    completion_tokens: TokenCount | None = None
    prompt_tokens_details: ReadCached | None = None


class ReadLikely(AnswerPart):
    token: str
    logprob: Logprob
    id: int | None = None

    @property
    def name(self) -> str:
        return self.token if self.id is None else str(self.id)


class ReadToken(AnswerPart):
    logprob: Logprob
    id: int | None = None
    top_logprobs: list[ReadLikely]


class ReadLogprobs(AnswerPart):
    """OpenAI's form for completions, or `content`, that for chats, which llama.cpp uses for
    both."""

    content: list[ReadToken] | None = None
    token_logprobs: list[Logprob] = []
    tokens: list[str] | None = None
    top_logprobs: list[dict[str, Logprob] | None] | None = None

    def figures(self) -> Iterator[TokenFigures]:
        if self.content is not None:
            for of in self.content:
                yield TokenFigures(of.logprob, {t.name: t.logprob for t in of.top_logprobs}, of.id)
            return
        count = len(self.token_logprobs)
        names = self.tokens if self.tokens and len(self.tokens) == count else [""] * count
        likeliest = self.top_logprobs or [None] * count
        for value, top, name in zip(self.token_logprobs, likeliest, names, strict=False):
            yield TokenFigures(value, top or {}, _token(name))


class ReadChoice(AnswerPart):
    text: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    stop_reason: Any = None  # vLLM
    matched_stop: Any = None  # SGLang
    token_ids: list[int] | None = None
    logprobs: ReadLogprobs | None = None


class ReadAnswer(AnswerPart):
    choices: list[ReadChoice] = Field(min_length=1, max_length=1)
    usage: ReadUsage | None = None


@dataclass(frozen=True)
class Expected:
    """What one request has asked for, which its answer is held against.

    vocab_size: of the tokenizer here. prompt: its tokens. logprobs: of how many of the likeliest
    tokens there must be log-probabilities, as the server has given them before. echo: the prompt
    comes back too.
    """

    vocab_size: int
    prompt: int
    max_tokens: int
    logprobs: int = 0
    echo: bool = False

    def read(self, data: Any) -> Reply:
        """The one completion of an answer. Raises Passing for an answer that is none,
        RequestRefused for tokens that the tokenizer does not have, ContentRefused where a filter
        has cut it off."""
        answer = ReadAnswer.of(data)
        (choice,) = answer.choices
        thought = choice.reasoning_content or choice.reasoning or ""
        if choice.finish_reason == "content_filter":
            raise ContentRefused(
                "the server's filter of contents has cut an answer off "
                "(finish_reason='content_filter')"
            )
        apart = {"reasoning_content", "reasoning"} & choice.model_fields_set
        refuse(
            {
                f"answered with finish_reason={short_repr(choice.finish_reason)} where stop or "
                "length was expected": choice.finish_reason not in ("stop", "length"),
                # else nothing follows the thought
                "answered without a text": choice.text is None and not apart,
            },
            Passing,
        )
        figures = [] if choice.logprobs is None else list(choice.logprobs.figures())
        usage = answer.usage or ReadUsage()
        details = usage.prompt_tokens_details or ReadCached()
        by = choice.stop_reason if choice.matched_stop is None else choice.matched_stop
        reply = Reply(
            choice.text or "",
            _tokens(choice.token_ids, figures),
            str(choice.finish_reason),
            by if isinstance(by, str | int) else None,
            figures,
            usage.prompt_tokens,
            details.cached_tokens or 0,
            usage.completion_tokens,
            thought,
        )
        self._check(reply)
        return reply

    def _check(self, reply: Reply) -> None:
        tokens = reply.tokens or []
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise RequestRefused(
                    f"the server's answer holds token {short_repr(token)}, outside the model's "
                    f"vocabulary of {self.vocab_size}; give the tokenizer of the model that it "
                    "serves"
                )
        written = max(len(tokens), reply.generated_tokens or 0)
        most = max(written, len(reply.figures))
        length = len(reply.text) + len(reply.thought)
        max_tokens = number_of(self.max_tokens, "token")
        cached, prompt = reply.cached_tokens, reply.prompt_tokens or 0
        strange = {
            f"{number_of(most, 'token')} where {self.max_tokens} were asked for": (
                not self.echo and most > self.max_tokens
            ),
            f"{number_of(length, 'character')} where {max_tokens} were asked for": (
                not self.echo and length > self.max_tokens * LONGEST_TOKEN
            ),
            f"prompt_tokens={prompt} where {number_of(self.prompt, 'token')} were sent": (
                prompt > 2 * self.prompt + SPARE_TOKENS
            ),
            f"cached_tokens={cached} of prompt_tokens={prompt}": cached > prompt,
            "a text and no token_ids": reply.text and reply.tokens == [],
            "a text and completion_tokens=0": length and reply.generated_tokens == 0,
        }
        without = (
            "answered without the log-probabilities that were asked for, which it has given "
            "before; look into the server's log"
        )
        needed = self.logprobs and (length or written)
        refuse(
            {f"answered with {answer}": holds for answer, holds in strange.items()}
            | {without: needed and not self._has_logprobs(reply)},
            Passing,
        )

    def _has_logprobs(self, reply: Reply) -> bool:
        figures = reply.figures
        if self.echo:  # nothing comes before the first token
            return not any(isnan(f.logprob) for f in figures[1:])
        is_whole = reply.finish == "length" and not reply.thought
        if not figures or (is_whole and len(figures) + 1 < (reply.generated_tokens or 0)):
            return False
        tops = (f.top1 if self.logprobs < TOP_K else f.top_k_logprob for f in figures)
        return not any(isnan(f.logprob) or isnan(top) for f, top in zip(figures, tops, strict=True))


def check_same_text(reply: Reply, tokenizer: Any) -> None:
    """Raise RemoteError where a reply's tokens do not read as its text: the tokenizer here is not
    the model's.

    Servers treat blanks, and a character that the end of the tokens has cut, in different ways:
    these are not compared, nor is a text whose thought was kept apart. Either text may be longer,
    by an end string or an end-of-sequence token.
    """
    if not reply.tokens or reply.thought or "\ufffd" in reply.text:
        return
    theirs = "".join(reply.text.split())
    for special in (True, False):
        ours = "".join(decoded(reply.tokens, tokenizer, special=special).split())
        if "\ufffd" in ours or ours.startswith(theirs) or theirs.startswith(ours):
            return
    read = decoded(reply.tokens, tokenizer, special=True)
    raise RemoteError(
        f"the server's tokens {reply.tokens[:8]} read {read[:60]!r} here, and "
        f"{reply.text[:60]!r} there; give the tokenizer of the model that it serves"
    )


def _tokens(tokens: list[int] | None, figures: list[TokenFigures]) -> list[int] | None:
    if tokens is None and figures and all(f.token is not None for f in figures):
        return [f.token for f in figures if f.token is not None]
    if tokens is not None and figures and len(figures) != len(tokens):
        raise Passing(
            f"answered with log-probabilities of {number_of(len(figures), 'token')} beside "
            f"{number_of(len(tokens), 'token')}"
        )
    return tokens


def _token(name: str) -> int | None:
    number = name.removeprefix(TOKEN_ID)
    return int(number) if number != name and number.isdecimal() else None
