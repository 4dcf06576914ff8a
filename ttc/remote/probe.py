"""What can this server do? A handful of short requests, before any work, find out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from math import isnan
from typing import Annotated, Any

from pydantic import Field

from ttc.errors import InvalidInput, RemoteError, RequestRefused, refuse
from ttc.remote.capabilities import Capabilities
from ttc.remote.client import Client, short_repr
from ttc.remote.replies import (
    MOST_TOKENS,
    TOKEN_ID,
    TOP_K,
    AnswerPart,
    Expected,
    Reply,
    check_same_text,
)
from ttc.sampling import GREEDY, Sampling
from ttc.text.chat import decoded
from ttc.text.prompt import raw_tokens

TEXT = "One, two, three, four,"
TOKENS = 16
"""Of the answers to it."""
HOT = Sampling(temperature=2.0)
SAME = 0.02
"""Log-probabilities of a token that differ by less are the same, computed beside other requests."""
MAX_NAMES = 20
"""Models that a message names."""
RETRIES = 2
"""Of requests that a server may fail at because it does not know what they ask for."""


def probe(client: Client, tokenizer: Any) -> Capabilities:
    """Ask the server what it serves, and try what a backend would ask for.

    Raises RemoteError where it cannot be reached or used, InvalidInput for a model that it does not
    serve and for a tokenizer that is not its model's.
    """
    return Probe(client, tokenizer).run()


class Probe:
    """Each method finds out one thing. can: what is known of the server before."""

    def __init__(self, client: Client, tokenizer: Any):
        self.client = client
        self.tokenizer = tokenizer
        self.prompt = raw_tokens(TEXT, tokenizer)

    def run(self) -> Capabilities:
        can, greedy = self.with_prompts(served(self.client))
        can = self.with_seeds(self.with_logprobs(can))
        can = replace(can, stops=self.stops(can, greedy))
        if can.prompt_tokens and can.logprobs:
            can = replace(can, chosen=self.chosen(can), echo=self.echo(can))
        return can

    def with_prompts(self, can: Capabilities) -> tuple[Capabilities, Reply]:
        refusals: list[str] = []
        for extras, tokens in ((True, True), (True, False), (False, True), (False, False)):
            tried = replace(can, extras=extras, prompt_tokens=tokens)
            is_last = not extras and not tokens
            try:
                reply = self.ask(tried, GREEDY, retries=None if is_last else RETRIES)
            except RemoteError as error:
                if is_last and not isinstance(error, RequestRefused):
                    raise
                refusals.append(str(error))
                continue
            tried = replace(tried, reply_tokens=reply.tokens is not None)
            counted, sent = reply.prompt_tokens, len(self.prompt)
            if counted in (None, sent):
                check_same_text(reply, self.tokenizer)
                return tried, reply
            if tokens:
                continue
            begin = getattr(self.tokenizer, "bos_token_id", None)
            if counted == sent + 1 and self.prompt[0] == begin:
                return replace(tried, adds_bos=True), reply
            raise InvalidInput(
                f"the server counts {counted} tokens in {TEXT!r}, and the tokenizer here {sent}; "
                f"give the tokenizer of the model that it serves, {can.model}"
            )
        raise RemoteError(refusals[-1])

    def with_logprobs(self, can: Capabilities) -> Capabilities:
        """Of how many tokens there are log-probabilities, and whether they are the model's."""
        for count in (TOP_K, 1):
            cold = self.try_asking(can, GREEDY, logprobs=count)
            hot = self.try_asking(can, HOT, logprobs=count)
            if cold is None or hot is None or not cold.figures or not hot.figures:
                continue
            first, second = cold.figures[0], hot.figures[0]
            if isnan(first.top1) or isnan(second.top1):
                why = "its log-probabilities leave out the likeliest tokens'"
                return replace(can, logprobs_why=why)
            if abs(max(first.likeliest.values()) - max(second.likeliest.values())) > SAME:
                return replace(
                    can,
                    logprobs_why="its log-probabilities change with the temperature, and the "
                    "model's own are needed (vLLM: --logprobs-mode raw_logprobs; SGLang: "
                    "SGLANG_RETURN_ORIGINAL_LOGPROB=1)",
                )
            count = 1 if isnan(first.top_k_logprob) else TOP_K
            names_tokens = can.reply_tokens or cold.tokens is not None
            return replace(can, logprobs=count, reply_tokens=names_tokens)
        return can

    def with_seeds(self, can: Capabilities) -> Capabilities:
        futures = [self.send(can, HOT, seed=seed) for seed in (1, 1, 2, 3)]
        first, again, *others = [future.result().text for future in futures]
        return replace(can, seeds=first == again, varied=any(text != first for text in others))

    def stops(self, can: Capabilities, greedy: Reply) -> bool:
        """Whether a text that a string has ended shows that string, or names it."""
        text = greedy.text
        middle = len(text) // 2
        string = text[middle : middle + 2].strip()
        if not string or text.find(string) < 1 or "\ufffd" in text:
            return False
        reply = self.try_asking(can, GREEDY, stop=(string,))
        if reply is None or reply.finish != "stop" or len(reply.text) >= len(text):
            return False
        if reply.tokens is not None:
            return string in decoded(reply.tokens, self.tokenizer, special=True)
        return string in reply.text or reply.stopped_by == string

    def chosen(self, can: Capabilities) -> bool:
        tokens = sorted(set(self.prompt))[:4]
        reply = self.try_asking(can, GREEDY, tokens=1, logprobs=1, logprob_token_ids=tokens)
        logprobs = reply.figures[0].likeliest if reply is not None and reply.figures else {}
        return all(f"{TOKEN_ID}{token}" in logprobs for token in tokens)

    def echo(self, can: Capabilities) -> bool:
        more = {"echo": True, "return_token_ids": False}
        reply = self.try_asking(can, GREEDY, tokens=1, logprobs=1, **more)
        if reply is None or len(reply.figures) < len(self.prompt):
            return False
        return not any(isnan(f.logprob) for f in reply.figures[1 : len(self.prompt)])

    # ---------------------------------------------------------------- asking

    def try_asking(self, can: Capabilities, sampling: Sampling, **options: Any) -> Reply | None:
        try:
            return self.ask(can, sampling, retries=RETRIES, **options)
        except RemoteError:
            return None

    def ask(self, can: Capabilities, sampling: Sampling, **options: Any) -> Reply:
        return self.send(can, sampling, **options).result()

    def send(
        self,
        can: Capabilities,
        sampling: Sampling,
        *,
        tokens: int = TOKENS,
        seed: int = 0,
        stop: Sequence[str] = (),
        logprobs: int = 0,
        retries: int | None = None,
        **more: Any,
    ) -> Future[Reply]:
        prompt = can.prompt(self.prompt, self.tokenizer)
        body = can.request(prompt, tokens, seed, sampling, stop, logprobs) | more
        expected = Expected(len(self.tokenizer), len(self.prompt), tokens, echo="echo" in more)
        return self.client.post("completions", body, expected.read, retries=retries)


class Listed(AnswerPart):
    """max_model_len: vLLM and SGLang say."""

    id: str = Field(min_length=1)
    max_model_len: Annotated[int, Field(ge=2, le=MOST_TOKENS)] | None = None


class ReadModels(AnswerPart):
    data: list[Listed]


def read_models(data: Any) -> dict[str, Listed]:
    return {entry.id: entry for entry in ReadModels.of(data).data}


def served(client: Client) -> Capabilities:
    """The model that is asked for, and its context length, as far as the server says.

    A server that is not there is not waited for.
    """
    endpoint = client.endpoint
    try:
        models = client.get("models", read_models, retries=0)
    except RequestRefused as error:
        if endpoint.model is None or "status 404" not in str(error):
            raise
        # some hosted ones have no list
        models = {endpoint.model: Listed(id=endpoint.model)}
    names = ", ".join(short_repr(name).strip("'\"") for name in islice(models, MAX_NAMES))
    if not models:
        raise RemoteError(f"{endpoint.base_url} serves no model; look into the server's log")
    name = next(iter(models)) if endpoint.model is None else endpoint.model
    refuse(
        {
            f"the server has {len(models)} models; give backend.model=NAME (in Python model=NAME), "
            f"one of {names}": endpoint.model is None and len(models) != 1,
            f"model={name!r} is not served at {endpoint.base_url}; use one of {names}": (
                name not in models
            ),
        }
    )
    stated = models[name].max_model_len
    lengths = [stated, endpoint.context_length]
    return Capabilities(name, min((n for n in lengths if n is not None), default=None))
