"""What a server can do, and a request in the words that it understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ttc.backend import Need
from ttc.errors import InvalidInput, number_of, refuse
from ttc.model.generation_settings import GenerationSettings
from ttc.remote.replies import TOP_K
from ttc.sampling import Sampling
from ttc.text.chat import decoded


@dataclass(frozen=True)
class Capabilities:
    """What `probe` found out about a server.

    model: the name that it gives its model. context_length: the model's, None if it is not known.
    prompt_tokens: prompts may be token numbers, else they are text. reply_tokens: answers name
    their token numbers.
    extras: it takes settings beyond OpenAI's, among them top_k, min_p and what keeps stop strings
    in the text.
    adds_bos: it puts a beginning-of-sequence token before a prompt of text, whatever it is told.
    logprobs: of how many of the likeliest tokens it gives log-probabilities, 0 for none;
    logprobs_why: why there are none.
    seeds: the same seed gives the same text. varied: another seed gives another text.
    stops: it can end a step at a string in a way that says where the step ended.
    echo: it gives log-probabilities of a prompt's tokens. chosen: of tokens that are asked for.
    """

    model: str
    context_length: int | None = None
    prompt_tokens: bool = False
    reply_tokens: bool = False
    extras: bool = False
    adds_bos: bool = False
    logprobs: int = 0
    logprobs_why: str = "it gives no log-probabilities"
    seeds: bool = False
    varied: bool = False
    stops: bool = False
    echo: bool = False
    chosen: bool = False

    @property
    def lacks(self) -> dict[Need, str]:
        """What searches and verifiers may need and this server cannot do: why, and the way out."""
        lacks: dict[Need, str] = {
            "statistics": "no server gives a token's whole distribution; use the local engine"
        }
        if not self.logprobs:
            lacks["logprobs"] = (
                f"{self.logprobs_why}; use a verifier that reads the text, or another server"
            )
        if self.logprobs < TOP_K:
            reason = f"it gives those of {number_of(self.logprobs, 'token')} at most"
            lacks["top_logprobs"] = (
                f"{reason if self.logprobs else self.logprobs_why}, and {TOP_K} are needed; vLLM "
                f"gives as many with --max-logprobs {TOP_K}"
            )
        if not self.prompt_tokens or not (self.echo or self.chosen):
            lacks["score"] = (
                "it gives no log-probabilities of given tokens (vLLM does); use a verifier that "
                "reads the text, or has a model of its own on this machine"
            )
        return lacks

    def describe(self) -> str:
        into = "tokens" if self.prompt_tokens else "text"
        out = "tokens" if self.reply_tokens else "text"
        logprobs = "no log-probabilities"
        if self.logprobs:
            logprobs = f"log-probabilities of {number_of(self.logprobs, 'token')}"
        scores = "scores of any given tokens" if self.echo else "scores of single given tokens"
        parts = (
            f"{into} in and out" if into == out else f"{into} in, {out} out",
            logprobs,
            "no scores of given tokens" if "score" in self.lacks else scores,
            "seeds" if self.seeds else "no repeatable seeds",
            "stop strings" if self.stops else "stop strings cut here",
            "all sampling settings" if self.extras else "temperature and top_p alone",
            f"context {self.context_length or 'unknown'}",
        )
        return ", ".join(parts)

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise InvalidInput for a way of choosing tokens that the server does not offer."""
        top_k, min_p, temperature = sampling.top_k, sampling.min_p, sampling.temperature
        penalty = sampling.repetition_penalty
        refuse(
            {
                f"top_k={top_k} and min_p={min_p} are not taken by this server, which knows "
                "OpenAI's own settings alone; leave them out and use top_p": (
                    not self.extras and (top_k or min_p)
                ),
                f"repetition_penalty={penalty} is not taken by this server, which knows OpenAI's "
                "own settings alone; leave it out, or use the local engine": (
                    not self.extras and penalty not in (None, 1)
                ),
                f"temperature={temperature} asks for samples, and this server gave the same text "
                "for different seeds; use temperature=0 with search=greedy, or another server": (
                    not self.varied and temperature > 0
                ),
            }
        )

    def check_settings(self, settings: GenerationSettings) -> None:
        """Raise InvalidInput for settings of a generation_config that the server cannot be told."""
        sent = ("repetition_penalty",) if self.extras else ()
        unsent = [
            f"{name}={value!r}" for name, value in settings.honoured.items() if name not in sent
        ]
        if unsent:
            raise InvalidInput(
                f"the model's generation_config sets {', '.join(unsent)}, and requests to this "
                "server cannot say so; use the local engine, or leave these settings out with "
                "model.generation_settings=false (Python: generation_settings=False)"
            )

    def prompt(self, tokens: Sequence[int], tokenizer: Any) -> list[int] | str:
        if self.prompt_tokens:
            return list(tokens)
        if self.adds_bos and tokens[0] != tokenizer.bos_token_id:
            raise InvalidInput(
                "the server puts a beginning-of-sequence token before every prompt of text, and "
                "the chat template of this prompt leaves it out; use a server that takes token "
                "numbers, or PromptTemplate(add_bos=True)"
            )
        return decoded(tokens[self.adds_bos :], tokenizer, special=True)

    def request(
        self,
        prompt: list[int] | str,
        max_tokens: int,
        seed: int,
        sampling: Sampling,
        stop: Sequence[str] = (),
        logprobs: int = 0,
    ) -> dict[str, Any]:
        """A completion request, of one branch: with more, seeds would be the server's to choose.

        Every setting is sent, as servers take missing ones from the model's files; so a repetition
        penalty of those files is none here, unless it is asked for.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "seed": seed,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stream": False,
        }
        if stop:
            body["stop"] = list(stop)
        if logprobs:
            body["logprobs"] = logprobs
        if self.extras:
            body |= {
                "top_k": sampling.top_k or -1,
                "min_p": sampling.min_p,
                "repetition_penalty": 1.0,
                "add_special_tokens": False,
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
                "include_stop_str_in_output": True,  # vLLM
                "no_stop_trim": True,  # SGLang
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            }
        return body
