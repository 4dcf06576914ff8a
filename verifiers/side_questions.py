"""Questions that a verifier asks the search's own model beside the search, to be answered by one of
a few words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ttc.checks import check_whole
from ttc.errors import InvalidInput
from ttc.passes.pass_by_pass import Passes
from ttc.protocols import (
    Backend,
    PrefillsByPass,
    RunsBatches,
    ScoresByPass,
    SideBranches,
    Step,
)
from ttc.sampling import Sampling
from ttc.text.chat import chat_tokens, has_template
from ttc.text.prompt import raw_tokens
from ttc.tree.branch import Branch
from verifiers.self_verifier import spellings
from verifiers.written_tests import begun


@dataclass(frozen=True)
class Reasoning:
    """What the model writes before it answers.

    samples: how often it is asked. max_tokens: of each text, 0 to answer at once. temperature: of
    the texts.
    """

    samples: int = 1
    max_tokens: int = 0
    temperature: float = 0.8

    def __post_init__(self) -> None:
        check_whole("repeats", self.samples, 1)
        check_whole("max_tokens", self.max_tokens, 0)
        _ = self.sampling  # refuses a wrong temperature before any work
        if self.samples > 1 and (not self.max_tokens or not self.temperature):
            raise InvalidInput(
                f"repeats={self.samples} would all be the same with max_tokens={self.max_tokens} "
                f"and temperature={self.temperature}; let the model write before it answers, as "
                "with max_tokens=256 and temperature=0.8"
            )

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature)


def side_prompt(text: str, backend: Backend, reasoning: Reasoning, cue: str) -> list[int]:
    """A question's tokens, up to where the model writes. cue: what comes before its answer."""
    chat = has_template(backend.tokenizer)
    asked = (
        chat_tokens([{"role": "user", "content": text}], backend.tokenizer)
        if chat
        else raw_tokens(f"{text}\n", backend.tokenizer)
    )
    return asked if reasoning.max_tokens else [*asked, *backend.encode(cue)]


def answer_shares(
    backend: Backend,
    asked: Sequence[tuple[Branch, list[int]]],
    words: Sequence[str],
    reasoning: Reasoning,
    cue: str,
) -> Passes[list[list[float]]]:
    """The probability of each word among all of them, for each question: `[question][word]`; the
    mean over the samples of what is written first. All of it counts as verifier tokens.

    asked: the branch that pays for a question, and the question's tokens (`side_prompt`). Raises
    InvalidInput where the backend makes no branches beside a search's, and UnsupportedModel where a
    word is no single token.
    """
    if not isinstance(backend, SideBranches):
        raise InvalidInput(
            f"{type(backend).__name__} makes no branches beside a search's (side_branches), where "
            "this verifier asks; use another one"
        )
    spelt = [spellings(backend, word) for word in words]
    tokens = [[token] for group in spelt for token in group]
    branches = [branch for branch, _ in asked]
    meters = {id(branch.usage): branch.usage for branch in branches}
    before = {key: replace(usage) for key, usage in meters.items()}
    made = yield from begun(backend, branches, [prompt for _, prompt in asked])
    try:
        texts = made
        if reasoning.max_tokens:
            texts = [text for one in made for text in backend.fork(one, reasoning.samples)]
            made = [*made, *texts]
            yield from _write(backend, texts, reasoning)
            for text in texts:
                if text.finish_reason is not None:
                    text.reopen(int(text.finish_reason == "eos"))
            cues = [backend.encode(cue)] * len(texts)
            if isinstance(backend, PrefillsByPass):
                extended: Any = backend.begin_extend(texts, cues, purpose="verifier")
                yield from extended.made()
            else:
                backend.extend(texts, cues, purpose="verifier")
        if isinstance(backend, ScoresByPass):
            rows = yield from backend.begin_score(texts, [tokens] * len(texts)).made()
        else:
            rows = backend.score(texts, [tokens] * len(texts))
    finally:
        backend.release(made)
        for key, usage in meters.items():
            written = usage.generated_tokens - before[key].generated_tokens
            usage.verifier_tokens += written
            usage.generated_tokens -= written
    shares = [_shares([row[0] for row in of_text], spelt) for of_text in rows]
    count = reasoning.samples if reasoning.max_tokens else 1
    groups = [shares[start : start + count] for start in range(0, len(shares), count)]
    return [[sum(column) / count for column in zip(*group, strict=True)] for group in groups]


def _write(backend: Backend, texts: Sequence[Branch], reasoning: Reasoning) -> Passes[None]:
    if not isinstance(backend, RunsBatches):
        backend.generate(texts, reasoning.max_tokens, sampling=reasoning.sampling)
        return
    batch = backend.running_batch()
    batch.add(texts, Step(reasoning.max_tokens), reasoning.sampling)
    while len(batch):
        batch.step()
        yield


def _shares(logprobs: Sequence[float], spelt: Sequence[Sequence[int]]) -> list[float]:
    highest = max(logprobs)
    weights = iter([math.exp(logprob - highest) for logprob in logprobs])
    sums = [sum(next(weights) for _ in tokens) for tokens in spelt]
    return [each / sum(sums) for each in sums]


def longest_cost(prompts: Sequence[Sequence[int]], reasoning: Reasoning, cue: int) -> int:
    written = reasoning.samples * (reasoning.max_tokens + cue + 1) if reasoning.max_tokens else 1
    return sum(len(prompt) + written for prompt in prompts)
