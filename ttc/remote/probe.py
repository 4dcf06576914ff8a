"""What can this server do? A handful of short requests, before any work, find out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from math import isnan
from typing import Any

from ttc.errors import InvalidInput, RemoteError
from ttc.remote.capabilities import Capabilities
from ttc.remote.client import Client, Passing, Refused
from ttc.remote.replies import TOKEN_ID, TOP_K, Reply, as_text, check_same_text, read_reply
from ttc.sampling import Sampling
from ttc.text.prompt import raw_tokens

TEXT = "One, two, three, four,"
TOKENS = 16
"""Of the answers to it."""
HOT, GREEDY = Sampling(temperature=2.0), Sampling(temperature=0)
SAME = 0.02
"""Log-probabilities of one token that differ by less are the same, computed beside other requests."""
RETRIES = 2
"""Of requests that a server may fail at because it does not know what they ask for."""


def probe(client: Client, tokenizer: Any) -> Capabilities:
    """Ask the server what it serves, and try what a backend would ask for.

    Raises RemoteError where it cannot be reached or used, InvalidInput for a model that it does not serve and for a
    tokenizer that is not its model's.
    """
    return Probe(client, tokenizer).run()


class Probe:
    """Each method finds out one thing."""

    def __init__(self, client: Client, tokenizer: Any):
        self.client, self.tokenizer = client, tokenizer
        self.prompt = raw_tokens(TEXT, tokenizer)

    def run(self) -> Capabilities:
        found = served(self.client)
        found, greedy = self.spoken(found)
        found = self.with_logprobs(found)
        found = self.with_seeds(found)
        found = replace(found, stops=self.stops(found, greedy))
        if found.prompt_tokens and found.logprobs:
            found = replace(found, chosen=self.chosen(found), echo=self.echo(found))
        return found

    def spoken(self, found: Capabilities) -> tuple[Capabilities, Reply]:
        """In which words the server takes a prompt, and its greedy answer."""
        refusals: list[str] = []
        for extras in (True, False):
            for tokens in (True, False):
                tried = replace(found, extras=extras, prompt_tokens=tokens)
                try:
                    reply = self.ask(tried, GREEDY, retries=None if not extras and not tokens else RETRIES)
                except RemoteError as error:
                    if not isinstance(error, Refused) and not (extras or tokens):
                        raise
                    refusals.append(str(error))
                    continue
                if (counted := reply.prompt_tokens) in (None, len(self.prompt)):
                    check_same_text(reply, self.tokenizer)
                    return replace(tried, reply_tokens=reply.tokens is not None), reply
                if tokens:
                    continue
                if counted == len(self.prompt) + 1 and self.prompt[0] == getattr(self.tokenizer, "bos_token_id", None):
                    return replace(tried, adds_bos=True, reply_tokens=reply.tokens is not None), reply
                raise InvalidInput(
                    f"the server counts {counted} tokens in {TEXT!r}, and the tokenizer here {len(self.prompt)}; give "
                    f"the tokenizer of the model that it serves, {found.model}"
                )
        raise RemoteError(refusals[-1])

    def with_logprobs(self, found: Capabilities) -> Capabilities:
        """Of how many tokens there are log-probabilities, and whether they are the model's own."""
        for count in (TOP_K, 1):
            cold, hot = (self.tried(found, sampling, logprobs=count) for sampling in (GREEDY, HOT))
            if cold is None or hot is None or not cold.figures or not hot.figures:
                continue
            one, other = cold.figures[0], hot.figures[0]
            if isnan(one.top1) or isnan(other.top1):
                return replace(found, logprobs_why="its log-probabilities leave out the likeliest tokens'")
            if abs(max(one.likeliest.values()) - max(other.likeliest.values())) > SAME:
                return replace(
                    found,
                    logprobs_why="its log-probabilities change with the temperature, and the model's own are needed "
                    "(vLLM: --logprobs-mode raw_logprobs; SGLang: SGLANG_RETURN_ORIGINAL_LOGPROB=1)",
                )
            known = TOP_K if not isnan(one.top_k_logprob) else 1
            return replace(found, logprobs=known, reply_tokens=found.reply_tokens or cold.tokens is not None)
        return found

    def with_seeds(self, found: Capabilities) -> Capabilities:
        """Whether a seed gives the same text again, and others give others."""
        futures = [self.send(found, HOT, seed=seed) for seed in (1, 1, 2, 3)]
        first, again, *others = [future.result().text for future in futures]
        return replace(found, seeds=first == again, varied=any(text != first for text in others))

    def stops(self, found: Capabilities, greedy: Reply) -> bool:
        """Whether an answer that a string has ended says so: the string is in it, or is named beside it."""
        text = greedy.text
        middle = len(text) // 2
        string = text[middle : middle + 2].strip()
        if not string or text.find(string) < 1 or "\ufffd" in text:
            return False
        reply = self.tried(found, GREEDY, stop=(string,))
        if reply is None or reply.finish != "stop" or not len(reply.text) < len(text):
            return False
        if reply.tokens is not None:
            return string in as_text(self.tokenizer, reply.tokens, special=True)
        return string in reply.text or reply.stopped_by == string

    def chosen(self, found: Capabilities) -> bool:
        """Whether there are log-probabilities of tokens that are asked for."""
        wanted = sorted(set(self.prompt))[:4]
        reply = self.tried(found, GREEDY, tokens=1, logprobs=1, logprob_token_ids=wanted)
        known = reply.figures[0].likeliest if reply is not None and reply.figures else {}
        return all(f"{TOKEN_ID}{token}" in known for token in wanted)

    def echo(self, found: Capabilities) -> bool:
        """Whether there are log-probabilities of a prompt's own tokens."""
        reply = self.tried(found, GREEDY, tokens=1, logprobs=1, echo=True, return_token_ids=False)
        if reply is None or len(reply.figures) < len(self.prompt):
            return False
        return not any(isnan(figures.logprob) for figures in reply.figures[1 : len(self.prompt)])

    # ---------------------------------------------------------------- asking

    def tried(self, found: Capabilities, sampling: Sampling, **options: Any) -> Reply | None:
        """The answer, None where the server fails at what is asked."""
        try:
            return self.ask(found, sampling, retries=RETRIES, **options)
        except RemoteError:
            return None

    def ask(self, found: Capabilities, sampling: Sampling, *, retries: int | None = None, **options: Any) -> Reply:
        return self.send(found, sampling, retries=retries, **options).result()

    def send(
        self,
        found: Capabilities,
        sampling: Sampling,
        *,
        tokens: int = TOKENS,
        seed: int = 0,
        stop: Sequence[str] = (),
        logprobs: int = 0,
        retries: int | None = None,
        **more: Any,
    ) -> Future[Reply]:
        prompt = found.prompt(self.prompt, self.tokenizer)
        body = found.request(prompt, tokens, seed, sampling, stop, logprobs) | more
        return self.client.post("completions", body, read_reply, retries=retries)


def served(client: Client) -> Capabilities:
    """The model that is asked for, and its context length, as far as the server says.

    A server that is not there is not waited for.
    """
    endpoint = client.endpoint
    try:
        models = client.get("models", read_models, retries=0)
    except Refused as error:
        if endpoint.model is None or "status 404" not in str(error):  # some hosted ones have no list
            raise
        models = {endpoint.model: {}}
    name = endpoint.model
    if name is None:
        if len(models) != 1:
            raise InvalidInput(f"the server has {len(models)} models; say which by model, one of {', '.join(models)}")
        (name,) = models
    if name not in models:
        raise InvalidInput(f"model={name!r} is not served at {endpoint.base_url}; use one of {', '.join(models)}")
    length = models[name].get("max_model_len")  # vLLM, SGLang
    if endpoint.context_length is not None:
        length = endpoint.context_length if length is None else min(length, endpoint.context_length)
    return Capabilities(name, length)


def read_models(data: Any) -> dict[str, dict[str, Any]]:
    """What the server says of each of its models."""
    entries = data.get("data") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(isinstance(e, dict) and isinstance(e.get("id"), str) for e in entries):
        raise Passing(f"answered with no list of models: {str(data)[:200]}; is base_url right?")
    return {entry["id"]: entry for entry in entries}
