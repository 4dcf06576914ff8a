"""What a server answers to a completion request, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, isnan, nan
from typing import Any

from ttc.errors import ContentRefused, RemoteError, RequestRefused, number_of
from ttc.remote.client import Passing, shown
from ttc.text.chat import decoded

TOP_K = 20
"""Likeliest tokens whose mean log-probability is kept as a statistic."""
TOKEN_ID = "token_id:"
"""What servers write before the number of a token in the place of its text."""
ROUNDING = 1e-3
"""So far above 0 a log-probability may be by rounding; it counts as 0."""
LONGEST_TOKEN = 1024
"""Characters of the longest token."""
MOST_TOKENS = 10**9
"""No prompt and no answer has more."""
SPARE_TOKENS = 64
"""So many more than twice a prompt's tokens a server may count, which cuts texts in its own way."""
LEAST = -1e5
"""Of a token that was drawn, and of the likeliest one, no log-probability is lower."""


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
        return exp(max(self.likeliest.values())) if self.likeliest else nan

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


@dataclass(frozen=True)
class Expected:
    """What one request has asked for, which its answer is held against.

    vocab_size: of the tokenizer here. prompt: its tokens. logprobs: of how many of the likeliest
    tokens there must be log-probabilities, as the server has given them before. chosen: those of
    tokens that were named. echo: the prompt comes back too.
    """

    vocab_size: int
    prompt: int
    max_tokens: int
    logprobs: int = 0
    chosen: bool = False
    echo: bool = False

    def read(self, data: Any) -> Reply:
        """The one completion of an answer. Raises Passing for an answer that is none,
        RequestRefused for tokens that the tokenizer does not have, ContentRefused where a filter
        has cut it off."""
        choices = data.get("choices") if isinstance(data, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            number = len(choices) if isinstance(choices, list) else "no"
            raise Passing(f"answered with {number} choices where one was asked for: {shown(data)}")
        choice = choices[0]
        text, thought = _texts(choice)
        finish = choice.get("finish_reason")
        if finish == "content_filter":
            raise ContentRefused(
                "the server's filter of contents has cut an answer off "
                "(finish_reason='content_filter')"
            )
        if finish not in ("stop", "length"):
            raise Passing(
                f"answered with finish_reason={shown(finish)} where stop or length was expected"
            )
        figures = _figures(choice.get("logprobs"))
        stopped_by = choice.get("stop_reason", choice.get("matched_stop"))
        prompt, cached, generated = _usage(data.get("usage"))
        reply = Reply(
            text,
            _tokens(choice.get("token_ids"), figures),
            finish,
            stopped_by if isinstance(stopped_by, str | int) else None,
            figures,
            prompt,
            cached,
            generated,
            thought,
        )
        self._check(reply)
        return reply

    def _check(self, reply: Reply) -> None:
        tokens = reply.tokens or []
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise RequestRefused(
                    f"the server's answer holds token {shown(token)}, outside the model's "
                    f"vocabulary of {self.vocab_size}; give the tokenizer of the model that it "
                    "serves"
                )
        if not self.echo:
            self._check_length(reply)
        if (reply.prompt_tokens or 0) > 2 * self.prompt + SPARE_TOKENS:
            raise Passing(
                f"answered with prompt_tokens={reply.prompt_tokens} where "
                f"{number_of(self.prompt, 'token')} were sent"
            )
        if reply.text and reply.tokens == []:
            raise Passing(f"answered with a text and no token_ids: {shown(reply.text)}")
        written = bool(tokens or reply.text or reply.thought)
        if written and reply.generated_tokens == 0:
            raise Passing("answered with a text and completion_tokens=0")
        written = written or (reply.finish == "length" and bool(reply.generated_tokens))
        if written and self.logprobs and not self._has_logprobs(reply):
            raise Passing(
                "answered without the log-probabilities that were asked for, which it has given "
                "before; look into the server's log"
            )

    def _check_length(self, reply: Reply) -> None:
        counted = (len(reply.tokens or []), len(reply.figures), reply.generated_tokens or 0)
        if max(counted) > self.max_tokens:
            raise Passing(
                f"answered with {number_of(max(counted), 'token')} where {self.max_tokens} were "
                "asked for"
            )
        length = len(reply.text) + len(reply.thought)
        if length > self.max_tokens * LONGEST_TOKEN:
            raise Passing(
                f"answered with {number_of(length, 'character')} where "
                f"{number_of(self.max_tokens, 'token')} were asked for"
            )

    def _has_logprobs(self, reply: Reply) -> bool:
        figures = reply.figures
        if self.echo:  # nothing comes before the first token
            return not any(isnan(f.logprob) for f in figures[1:])
        is_whole = reply.finish == "length" and not reply.thought
        if not figures or (is_whole and len(figures) + 1 < (reply.generated_tokens or 0)):
            return False
        for f in figures:
            top = f.top1 if self.logprobs < TOP_K else f.top_k_logprob
            if isnan(f.logprob) or isnan(top):
                return False
            lowest = min(f.logprob, inf if self.chosen else max(f.likeliest.values()))
            if lowest < LEAST:
                raise Passing(
                    f"answered with the log-probability {lowest} of a token that was drawn or is "
                    "the likeliest"
                )
        return True


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


def _texts(choice: dict[str, Any]) -> tuple[str, str]:
    text = choice.get("text")
    apart = [choice[name] for name in ("reasoning_content", "reasoning") if name in choice]
    thought = next(filter(None, apart), "")
    if text is None and apart:  # nothing follows the thought
        text = ""
    if not isinstance(text, str) or not isinstance(thought, str):
        raise Passing(f"answered without a text: {shown(choice)}")
    return text, thought


def _tokens(given: Any, figures: Sequence[TokenFigures]) -> list[int] | None:
    tokens = given
    if tokens is None and figures and all(f.token is not None for f in figures):
        tokens = [f.token for f in figures]
    if tokens is None:
        return None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise Passing(f"answered with token_ids={shown(tokens)}, which are no numbers")
    if figures and len(figures) != len(tokens):
        raise Passing(
            f"answered with log-probabilities of {number_of(len(figures), 'token')} beside "
            f"{number_of(len(tokens), 'token')}"
        )
    return tokens


def _usage(usage: Any) -> tuple[int | None, int, int | None]:
    """The tokens of the prompt, those of them that were cached, and those of the answer."""
    prompt = _count(usage, "prompt_tokens")
    details = usage.get("prompt_tokens_details") if usage else None
    cached = _count(details, "cached_tokens") or 0
    if cached > (prompt or 0):
        raise Passing(f"answered with cached_tokens={cached} of prompt_tokens={prompt}")
    return prompt, cached, _count(usage, "completion_tokens")


def _count(counts: Any, name: str) -> int | None:
    if counts is not None and not isinstance(counts, dict):
        raise Passing(f"answered with usage that cannot be read: {shown(counts)}")
    value = counts.get(name) if counts else None
    if value is not None and (type(value) is not int or not 0 <= value <= MOST_TOKENS):
        raise Passing(f"answered with {name}={shown(value)}, which is no number of tokens")
    return value


def _figures(logprobs: Any) -> list[TokenFigures]:
    """Of OpenAI's form for completions, and of that for chats, which llama.cpp uses for both."""
    if not isinstance(logprobs, dict):
        return []
    try:
        if isinstance(content := logprobs.get("content"), list):
            return list(map(_chat_figures, content))
        values = logprobs["token_logprobs"]
        names = logprobs.get("tokens") or []
        if len(names) != len(values):
            names = [""] * len(values)
        tops = logprobs.get("top_logprobs") or [None] * len(values)
        figures = []
        for value, likeliest, name in zip(values, tops, names, strict=True):
            figures.append(TokenFigures(_number(value), _numbers(likeliest or {}), _token(name)))
        return figures
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise Passing(
            f"answered with log-probabilities that cannot be read ({str(error)[:120]}): "
            f"{shown(logprobs)}"
        ) from error


def _chat_figures(entry: dict[str, Any]) -> TokenFigures:
    tops = entry["top_logprobs"]
    likeliest = _numbers({str(top.get("id", top["token"])): top["logprob"] for top in tops})
    return TokenFigures(_number(entry["logprob"]), likeliest, entry.get("id"))


def _numbers(given: dict[str, Any]) -> dict[str, float]:
    return {name: _number(value) for name, value in given.items() if value is not None}


def _number(value: Any) -> float:
    if value is None:
        return nan
    if type(value) not in (int, float) or not -inf <= value <= ROUNDING:
        raise ValueError(f"{shown(value)} is no log-probability")
    return min(float(value), 0.0)


def _token(name: str) -> int | None:
    number = name.removeprefix(TOKEN_ID)
    return int(number) if number != name and number.isdecimal() else None
