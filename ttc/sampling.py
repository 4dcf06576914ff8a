"""How a token is chosen from logits: the settings, and the key of a branch's random numbers. The
choice itself is in `ttc.draws`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from ttc.checks import NonNegativeFloat, NonNegativeInt, Options, Share

MinP = Annotated[float, Interval(ge=0, lt=1)]
Penalty = Annotated[float, Interval(ge=1e-3, le=1e3)]


@dataclass(frozen=True)
class Sampling(Options):
    """How the next token is chosen. `temperature=0` is greedy, `top_k=0`, `top_p=1` and `min_p=0`
    turn a filter off. Filters apply in the order top-k,
    top-p, min-p. Of equal logits top-k and min-p keep all or none, as transformers does, so that
    `top_k=1` draws among those that tie for the largest.

    repetition_penalty: before all else, the logits of tokens that the prompt or the text so far
    holds are divided by it where they are positive, and multiplied where not (Keskar et al., 2019,
    section 4.1), as transformers and vLLM do. 1 changes nothing, and None leaves it to the model's
    generation settings."""

    temperature: NonNegativeFloat = 1.0
    top_k: NonNegativeInt = 0
    top_p: Share = 1.0
    min_p: MinP = 0.0
    repetition_penalty: Penalty | None = None


SAMPLED = Sampling()
"""Plain sampling from the model's own distribution."""

GREEDY = Sampling(temperature=0)


def random_key(*parts: object) -> int:
    """A 64-bit key from any printable parts, as (run seed, problem id) or (parent key, index)."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
