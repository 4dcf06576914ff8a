"""Branches beside a search's own, on which a verifier asks or writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import UnsupportedModel
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Passes
from ttc.text.chat import chat_tokens, following, has_template
from ttc.text.prompt import guarded, raw_tokens
from ttc.text.thinking_switch import without_thought
from ttc.text.thoughts import Thoughts
from ttc.usage import distinct


def side_tokens(
    text: str,
    backend: Backend,
    ending: str = "\nAnswer:",
    *,
    thinks: bool = False,
    thoughts: Thoughts | None = None,
) -> list[int]:
    """The tokens of a question as a chat. ending: what follows it without a chat template. thinks:
    the model may think first; else it is asked for the answer at once. thoughts: of the branch that
    it is about."""
    tokenizer = backend.tokenizer
    if not has_template(tokenizer):
        return raw_tokens(f"{guarded(text, tokenizer)}{ending}", tokenizer)
    options, closing = ({}, "") if thinks else without_thought(tokenizer, thoughts)
    tokens = chat_tokens([{"role": "user", "content": text}], tokenizer, options)
    return [*tokens, *following(closing, tokenizer)] if closing else tokens


def written(
    backend: Backend,
    texts: Sequence[Branch],
    step: Step,
    sampling: Sampling,
    limits: Sequence[int] | None = None,
) -> Passes[None]:
    """Let branches write a step (see `Batch.add`), pass by pass."""
    batch = backend.running_batch()
    batch.add(texts, step, sampling, limits)
    while len(batch):
        batch.step()
        yield


def reopen(texts: Sequence[Branch]) -> None:
    """Let texts that have ended go on, without an end of sequence."""
    for text in texts:
        if text.finish_reason is not None:
            text.reopen(int(text.finish_reason == "eos"))


def spellings(backend: Backend, *words: str) -> list[list[int]]:
    """For each word the tokens that spell it alone, in any case, with and without a space."""
    word_tokens = []
    for word in words:
        cases = (word, word.capitalize(), word.upper())
        encoded = [backend.encode(f"{space}{form}") for form in cases for space in ("", " ")]
        word_tokens.append(sorted({tokens[0] for tokens in encoded if len(tokens) == 1}))
        if not word_tokens[-1]:
            raise UnsupportedModel(
                f"the tokenizer has no single token for {word!r}; use another verifier"
            )
    return word_tokens


def word_shares(
    backend: Backend, branches: Sequence[Branch], word_tokens: Sequence[Sequence[int]]
) -> Passes[list[list[float]]]:
    """The probability of each word (see `spellings`) among all of them, after each branch."""
    tokens = [[token] for group in word_tokens for token in group]
    rows = yield from backend.score(branches, [tokens] * len(branches)).passes()
    return [shares([logprob for (logprob,) in row], word_tokens) for row in rows]


def shares(logprobs: Sequence[float], word_tokens: Sequence[Sequence[int]]) -> list[float]:
    highest = max(logprobs)
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    each = iter(weights)
    return [sum(next(each) for _ in tokens) / sum(weights) for tokens in word_tokens]


@contextmanager
def counted_as_verifier(branches: Sequence[Branch]) -> Iterator[None]:
    """What is generated meanwhile for the problems of these branches counts as verifier tokens."""
    meters = distinct(branch.usage for branch in branches)
    before = [usage.generated_tokens for usage in meters]
    try:
        yield
    finally:
        for usage, tokens in zip(meters, before, strict=True):
            usage.verifier_tokens += usage.generated_tokens - tokens
            usage.generated_tokens = tokens


def rated_text(branch: Branch, thoughts: bool) -> str:
    """A branch's answer, or all of its text where thoughts count or there is no answer yet."""
    answer = None if thoughts else branch.answer_text
    return branch.text if answer is None else answer
