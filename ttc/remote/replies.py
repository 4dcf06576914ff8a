"""What a server answers to a completion request, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, nan
from typing import Any

from ttc.errors import RemoteError
from ttc.remote.client import ContentRefused, Passing

TOP_K = 20
"""Likeliest tokens whose mean log-probability is kept as a statistic."""
TOKEN_ID = "token_id:"
"""What servers write before the number of a token where its text stood else."""


@dataclass(frozen=True)
class Figures:
    """What a server says of one token.

    logprob: its log-probability, NaN where there is none (the first token of a prompt). likeliest: those of the
    likeliest tokens, or of those that were asked for, by their names. token: its number, where the server gives one.
    """

    logprob: float
    likeliest: dict[str, float] = field(default_factory=dict)
    token: int | None = None

    @property
    def top1(self) -> float:
        """The probability of the likeliest token."""
        return exp(max(self.likeliest.values())) if self.likeliest else nan

    @property
    def top_k_logprob(self) -> float:
        """The mean log-probability of the `TOP_K` likeliest tokens; NaN where fewer are known."""
        values = sorted(self.likeliest.values(), reverse=True)[:TOP_K]
        return sum(values) / TOP_K if len(values) == TOP_K else nan


@dataclass(frozen=True)
class Reply:
    """One completion.

    tokens: its token numbers, None where the server names none. finish: "stop" or "length". stopped_by: the string or
    the token that ended it, where the server says so. figures: of each of the server's tokens, [] without
    log-probabilities. prompt_tokens, cached_tokens, generated_tokens: as the server counts, None where it does not.
    thought: what the server has kept apart from the text, as it was thought before that; its tokens are among `tokens`.
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
    """The one completion of an answer. Raises Passing for an answer that is none, ContentRefused where a filter has cut
    it off."""
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        number = len(choices) if isinstance(choices, list) else "no"
        raise Passing(f"answered with {number} choices where one was asked for: {str(data)[:200]}")
    choice = choices[0]
    text, finish = choice.get("text"), choice.get("finish_reason")
    apart = [choice[name] for name in ("reasoning_content", "reasoning") if name in choice]
    thought = next(filter(None, apart), "")
    if text is None and apart:  # a server with a reasoning parser, and nothing follows the thought
        text = ""
    if not isinstance(text, str) or not isinstance(thought, str):
        raise Passing(f"answered without a text: {str(choice)[:200]}")
    if finish == "content_filter":
        raise ContentRefused("the server's filter of contents has cut an answer off (finish_reason='content_filter')")
    if finish not in ("stop", "length"):
        raise Passing(f"answered with finish_reason={finish!r} where stop or length was expected")
    figures = _figures(choice.get("logprobs"))
    tokens = choice.get("token_ids")
    if tokens is None and figures and all(f.token is not None for f in figures):
        tokens = [f.token for f in figures]
    if tokens is not None and not (isinstance(tokens, list) and all(type(token) is int for token in tokens)):
        raise Passing(f"answered with token_ids={str(tokens)[:80]}, which are no numbers")
    if tokens is not None and figures and len(figures) != len(tokens):
        raise Passing(f"answered with log-probabilities of {len(figures)} tokens beside {len(tokens)} tokens")
    stopped_by = choice.get("stop_reason", choice.get("matched_stop"))
    return Reply(
        text,
        tokens,
        finish,
        stopped_by if isinstance(stopped_by, str | int) else None,
        figures,
        *_usage(data.get("usage")),
        thought,
    )


def as_text(tokenizer: Any, tokens: Sequence[int], *, special: bool) -> str:
    """Tokens to text, special tokens left out unless `special`."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False))


def check_same_text(reply: Reply, tokenizer: Any) -> None:
    """Raise RemoteError where a reply's tokens do not read as its text: the tokenizer here is not the model's.

    Blanks, and texts with a character that the end of the tokens has cut, are not compared: servers treat them in ways
    of their own. Either text may be longer, by an end string or an end-of-sequence token. A text whose thought was kept
    apart is not compared.
    """
    if not reply.tokens or reply.thought or "\ufffd" in reply.text:
        return
    theirs = "".join(reply.text.split())
    for special in (True, False):
        ours = as_text(tokenizer, reply.tokens, special=special)
        if "\ufffd" in ours:
            return
        ours = "".join(ours.split())
        if ours.startswith(theirs) or theirs.startswith(ours):
            return
    read = as_text(tokenizer, reply.tokens, special=True)
    raise RemoteError(
        f"the server's tokens {reply.tokens[:8]} read {read[:60]!r} here, and "
        f"{reply.text[:60]!r} there; give the tokenizer of the model that it serves"
    )


def _usage(usage: Any) -> tuple[int | None, int, int | None]:
    """(prompt, cached, generated) tokens."""
    if not isinstance(usage, dict):
        return None, 0, None
    prompt, generated = (
        value if type(value) is int else None for value in (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    )
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return prompt, cached if type(cached) is int else 0, generated


def _figures(logprobs: Any) -> list[Figures]:
    """Of OpenAI's form for completions, and of that for chats, which llama.cpp uses for both."""
    if not isinstance(logprobs, dict):
        return []
    try:
        if isinstance(content := logprobs.get("content"), list):
            return [
                Figures(
                    _number(entry["logprob"]),
                    {str(top.get("id", top["token"])): _number(top["logprob"]) for top in entry["top_logprobs"]},
                    entry.get("id"),
                )
                for entry in content
            ]
        values, names = logprobs["token_logprobs"], logprobs.get("tokens") or []
        tops = logprobs.get("top_logprobs") or [None] * len(values)
        names = names if len(names) == len(values) else [""] * len(values)
        return [
            Figures(_number(value), {name: _number(top) for name, top in (likeliest or {}).items()}, _token(name))
            for value, likeliest, name in zip(values, tops, names, strict=True)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Passing(f"answered with log-probabilities that cannot be read: {str(logprobs)[:200]}") from error


def _number(value: Any) -> float:
    if value is None:
        return nan
    number = float(value)
    if not isfinite(number) and number != float("-inf"):
        raise ValueError(f"{value!r} is no log-probability")
    return number


def _token(name: str) -> int | None:
    """The number in a name like "token_id:17"."""
    number = name.removeprefix(TOKEN_ID)
    return int(number) if number != name and number.isdigit() else None
