"""What a server answers to a completion request, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, nan
from typing import Any

from ttc.errors import RemoteError
from ttc.remote.client import ContentRefused, Passing
from ttc.text.chat import decoded
from ttc.wording import number_of

TOP_K = 20
"""Likeliest tokens whose mean log-probability is kept as a statistic."""
TOKEN_ID = "token_id:"
"""What servers write before the number of a token in the place of its text."""


@dataclass(frozen=True)
class Figures:
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
    figures: list[Figures]
    prompt_tokens: int | None
    cached_tokens: int
    generated_tokens: int | None
    thought: str = ""


def read_reply(data: Any) -> Reply:
    """The one completion of an answer. Raises Passing for an answer that is none, ContentRefused
    where a filter has cut it off."""
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        number = len(choices) if isinstance(choices, list) else "no"
        raise Passing(f"answered with {number} choices where one was asked for: {str(data)[:200]}")
    choice = choices[0]
    text, thought = _texts(choice)
    finish = choice.get("finish_reason")
    if finish == "content_filter":
        raise ContentRefused(
            "the server's filter of contents has cut an answer off (finish_reason='content_filter')"
        )
    if finish not in ("stop", "length"):
        raise Passing(f"answered with finish_reason={finish!r} where stop or length was expected")
    figures = _figures(choice.get("logprobs"))
    stopped_by = choice.get("stop_reason", choice.get("matched_stop"))
    prompt, cached, generated = _usage(data.get("usage"))
    return Reply(
        text,
        _tokens(choice.get("token_ids"), figures),
        finish,
        stopped_by if isinstance(stopped_by, str | int) else None,
        figures,
        prompt,
        cached or 0,
        generated,
        thought,
    )


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
        raise Passing(f"answered without a text: {str(choice)[:200]}")
    return text, thought


def _tokens(given: Any, figures: Sequence[Figures]) -> list[int] | None:
    tokens = given
    if tokens is None and figures and all(f.token is not None for f in figures):
        tokens = [f.token for f in figures]
    if tokens is None:
        return None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise Passing(f"answered with token_ids={str(tokens)[:80]}, which are no numbers")
    if figures and len(figures) != len(tokens):
        raise Passing(
            f"answered with log-probabilities of {number_of(len(figures), 'token')} beside "
            f"{number_of(len(tokens), 'token')}"
        )
    return tokens


def _usage(usage: Any) -> tuple[int | None, int | None, int | None]:
    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    values = counts.get("prompt_tokens"), cached, counts.get("completion_tokens")
    prompt, cached, generated = (value if type(value) is int else None for value in values)
    return prompt, cached, generated


def _figures(logprobs: Any) -> list[Figures]:
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
            others = {other: _number(top) for other, top in (likeliest or {}).items()}
            figures.append(Figures(_number(value), others, _token(name)))
        return figures
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Passing(
            f"answered with log-probabilities that cannot be read: {str(logprobs)[:200]}"
        ) from error


def _chat_figures(entry: dict[str, Any]) -> Figures:
    tops = entry["top_logprobs"]
    likeliest = {str(top.get("id", top["token"])): _number(top["logprob"]) for top in tops}
    return Figures(_number(entry["logprob"]), likeliest, entry.get("id"))


def _number(value: Any) -> float:
    if value is None:
        return nan
    number = float(value)
    if not isfinite(number) and number != float("-inf"):
        raise ValueError(f"{value!r} is no log-probability")
    return number


def _token(name: str) -> int | None:
    number = name.removeprefix(TOKEN_ID)
    return int(number) if number != name and number.isdigit() else None
