"""The model rates its own answers (RKSC, verify pass), on each branch's own KV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ttc.branch import Branch
from ttc.early_exit import EarlyExit
from ttc.engine import Engine
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.protocols import Backend

_ANSWER = "\x00answer\x00"


@dataclass(frozen=True)
class SelfVerifier:
    """Asks the model whether a branch's answer is correct: P(yes) / (P(yes) + P(no)), one score per branch.

    The question is forked onto the branch, so that a dozen tokens are computed instead of the problem and its answer
    again. All spellings of yes and no that are single tokens count. The branches stay as they are.

    exit: lets branches leave the pass before the last layer (CGEE level 2; approximate, see `EarlyExit` for what their
    scores may be compared with). The question is part of that pass, so its rows are saved too. `positive` is set here.
    Raises InvalidInput for an empty question, or for an exit on a backend that is no `Engine`.
    """

    question: str = "Is the answer above correct? Reply with Yes or No."
    exit: EarlyExit | None = None

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise InvalidInput("the verifier's question is empty")

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        yes, no = spellings(backend, "yes"), spellings(backend, "no")
        follow_up = self._follow_up(backend)
        eos = backend.tokenizer.eos_token_id
        # a finished branch has written the end of its turn itself
        added = [follow_up[1:] if b.tokens[-1] == eos == follow_up[0] else follow_up for b in branches]
        wanted = [[[t] for t in (*yes, *no)]] * len(branches)
        if self.exit is None:
            found = _in_full(branches, added, wanted, backend)
        elif isinstance(backend, Engine):
            found = backend.score(branches, wanted, given=added, exit=replace(self.exit, positive=len(yes)))
        else:
            raise InvalidInput(f"exit needs an Engine, whose layers can be left; {type(backend).__name__} is none")
        return [[_ratio([row[0] for row in rows], len(yes))] for rows in found]

    def _follow_up(self, backend: Backend) -> list[int]:
        """What comes after the assistant's answer: the end of its turn, the question, the next turn's start."""
        tokenizer: Any = backend.tokenizer
        if getattr(tokenizer, "chat_template", None) is None:
            return backend.encode(f"\n\n{self.question}\nAnswer:")
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": self.question},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return backend.encode(text.rpartition(_ANSWER)[2])


def _in_full(
    branches: Sequence[Branch], added: Sequence[list[int]], wanted: list[list[list[int]]], backend: Backend
) -> list[list[list[float]]]:
    """The scores of `wanted` after `added` through all layers, on forks."""
    forks: list[Branch] = []
    try:
        for branch in branches:
            forks += backend.fork(branch, 1)
        backend.extend(forks, added, purpose="verifier")
        return backend.score(forks, wanted)
    finally:
        backend.release(forks)


def spellings(backend: Backend, word: str) -> list[int]:
    """The tokens that spell `word` alone: lower case, capitalised, upper case, each with and without a space."""
    forms = [space + form for form in (word, word.capitalize(), word.upper()) for space in ("", " ")]
    encoded = [backend.encode(form) for form in forms]
    tokens = sorted({tokens[0] for tokens in encoded if len(tokens) == 1})
    if not tokens:
        raise UnsupportedModel(f"the tokenizer has no single token for {word!r}; use another verifier")
    return tokens


def _ratio(logprobs: Sequence[float], yes: int) -> float:
    top = max(logprobs)
    weights = [math.exp(x - top) for x in logprobs]
    return sum(weights[:yes]) / sum(weights)
