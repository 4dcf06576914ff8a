"""The model rates its own answers (RKSC, verify pass), on each branch's own KV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ttc.branch import Branch
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.protocols import Backend

_ANSWER = "\x00answer\x00"


@dataclass(frozen=True)
class SelfVerifier:
    """Asks the model whether a branch's answer is correct: P(yes) / (P(yes) + P(no)), one score per branch.

    The question is forked onto the branch, so that a dozen tokens are computed instead of the problem and its answer
    again. All spellings of yes and no that are single tokens count. The branches stay as they are.
    """

    question: str = "Is the answer above correct? Reply with Yes or No."

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise InvalidInput("the verifier's question is empty")

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        yes, no = spellings(backend, "yes"), spellings(backend, "no")
        follow_up = self._follow_up(backend)
        eos = backend.tokenizer.eos_token_id
        forks: list[Branch] = []
        try:
            for branch in branches:
                forks += backend.fork(branch, 1)
            # a finished branch has written the end of its turn itself
            added = [follow_up[1:] if b.tokens[-1] == eos == follow_up[0] else follow_up for b in branches]
            backend.extend(forks, added, purpose="verifier")
            found = backend.score(forks, [[[t] for t in (*yes, *no)]] * len(forks))
        finally:
            backend.release(forks)
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
