"""A server once it is known: what it can do, its model's limits and tokenizer, its completions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ttc.errors import RemoteError, on_failure
from ttc.model.generation_settings import GenerationSettings
from ttc.model.limits import ModelLimits
from ttc.remote.capabilities import Capabilities
from ttc.remote.client import Client
from ttc.remote.endpoint import Endpoint
from ttc.remote.probe import probe
from ttc.remote.replies import Expected, Reply
from ttc.sampling import Sampling
from ttc.text.chat import decoded, encoded
from ttc.usage import Usage


@dataclass(frozen=True)
class Server:
    """What a backend and its batches share.

    settings: what the model's files ask of each token, as far as a server can be told.
    """

    client: Client
    can: Capabilities
    tokenizer: Any
    limits: ModelLimits
    settings: GenerationSettings

    @classmethod
    def connect(cls, endpoint: Endpoint, tokenizer: Any, settings: GenerationSettings) -> Server:
        """Find out what the server can do. Raises as `probe`, and InvalidInput for settings that
        the server cannot be told."""
        client = Client(endpoint)
        with on_failure(client.close):
            can = probe(client, tokenizer)
            can.check_settings(settings)
        # the server says where a text ends
        limits = ModelLimits(len(tokenizer), can.context_length, frozenset())
        return cls(client, can, tokenizer, limits, settings)

    def complete(
        self,
        tokens: Sequence[int],
        max_tokens: int,
        seed: int,
        sampling: Sampling,
        *,
        stop: Sequence[str] = (),
        logprobs: int = 0,
        **more: Any,
    ) -> Future[Reply]:
        prompt = self.can.prompt(tokens, self.tokenizer)
        body = self.can.request(prompt, max_tokens, seed, sampling, stop, logprobs) | more
        expected = Expected(
            self.limits.vocab_size, len(tokens), max_tokens, logprobs, echo="echo" in more
        )
        return self.client.post("completions", body, expected.read)

    def penalty(self, sampling: Sampling) -> dict[str, float]:
        """The repetition penalty of a sampling, else of the model's files, as requests have it."""
        penalty = sampling.repetition_penalty
        return dict(self.settings.honoured) if penalty is None else {"repetition_penalty": penalty}

    def is_end(self, token: int) -> bool:
        return token == getattr(self.tokenizer, "eos_token_id", None)

    def count_prompt(self, usage: Usage, reply: Reply) -> None:
        """Count tokens that were sent as computed, unless the server's cache held them."""
        usage.prompt_tokens += (reply.prompt_tokens or 0) - reply.cached_tokens
        usage.shared_tokens += reply.cached_tokens

    def encode(self, text: str) -> list[int]:
        return encoded(text, self.tokenizer)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return decoded(tokens, self.tokenizer, special=special)

    def follow(self, tokens: Sequence[int], text: str) -> list[int]:
        before = self.decode(tokens, special=True)
        new = self.encode(text)
        if self.decode([*tokens, *new], special=True) == before + text:
            return new
        whole = self.encode(before + text)
        goes_on = whole[: len(tokens)] == list(tokens)
        if goes_on and self.decode(whole, special=True) == before + text:
            return whole[len(tokens) :]
        raise RemoteError(
            f"the server's text {text[:60]!r} cannot be written in the tokens of this tokenizer; "
            "give the tokenizer of the model that it serves, or use a server that answers with "
            "token numbers (vLLM)"
        )
