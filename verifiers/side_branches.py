"""Branches beside a search's own, on which a verifier asks or writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ttc.backend import Backend, Tokens
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Passes
from ttc.text.chat import chat_tokens, following, has_template
from ttc.text.prompt import raw_tokens
from ttc.text.special_tokens import guarded
from ttc.text.thinking_switch import without_thought
from ttc.text.thoughts import Thoughts
from ttc.tree.branch import Branch
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
    if has_template(backend.tokenizer):
        tokenizer = backend.tokenizer
        options, closing = ({}, "") if thinks else without_thought(tokenizer, thoughts)
        tokens = chat_tokens([{"role": "user", "content": text}], tokenizer, options)
        return [*tokens, *following(closing, tokenizer)] if closing else tokens
    return raw_tokens(f"{guarded(text, backend.tokenizer)}{ending}", backend.tokenizer)


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


def scored(
    backend: Backend, branches: Sequence[Branch], words: Sequence[Tokens]
) -> Passes[list[list[float]]]:
    """Log-probabilities of single tokens after each branch."""
    rows = yield from backend.score(branches, [words] * len(branches)).passes()
    return [[logprob for (logprob,) in row] for row in rows]


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
