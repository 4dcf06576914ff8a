"""What a search cost: tokens, forward passes, bytes moved, seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass
class Usage:
    """A meter. One is shared by all branches under a root; the engine adds to it as it works.

    `prompt_tokens` counts tokens whose KV was really computed by `root` and `extend`,
    `shared_tokens` those that were found in the tree instead, `recomputed_tokens` those whose KV a
    `BlockCache` had evicted, `substituted_tokens` those in whose place a similar prompt's KV was
    used (approximate); finding that out ran `probe_layer_rows` rows x layers that no KV came of.
    `verifier_tokens` are those that verifiers had computed, `verifier_shared_tokens` those that
    they read but found in the tree (less than 0 where `sharing=none` computes more than is read). A
    budget counts both, so that it does not depend on what the tree holds.
    Of the `generated_tokens`, `thinking_tokens` belong to a model's thoughts. `tool_calls` counts
    the calls of tools, equal ones too; the tokens of their answers are among the prompt's.
    `forward_passes` counts the batched passes the problem took part in, `verifications_skipped` the
    ratings that a gate answered without its verifier, `gated_branches` those that a `DecodeGate`
    stopped. Of scoring passes with an early exit, `exit_layer_rows` counts the rows x layers that
    were computed, `exit_layer_rows_saved` those that were left out, `lens_rows` the rows that norm
    and head were applied to. `drafted_tokens` were guessed by a draft and checked by the model,
    which drew `accepted_tokens` of them itself; these are among the generated ones.
    """

    prompt_tokens: int = 0
    shared_tokens: int = 0
    recomputed_tokens: int = 0
    substituted_tokens: int = 0
    generated_tokens: int = 0
    verifier_tokens: int = 0
    forward_passes: int = 0
    verifications_skipped: int = 0
    gated_branches: int = 0
    exit_layer_rows: int = 0
    exit_layer_rows_saved: int = 0
    lens_rows: int = 0
    probe_layer_rows: int = 0
    host_to_device_bytes: int = 0
    device_to_host_bytes: int = 0
    wall_s: float = 0.0
    thinking_tokens: int = 0
    tool_calls: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verifier_shared_tokens: int = 0

    @property
    def budgeted_tokens(self) -> int:
        """What a budget's `max_tokens` counts."""
        return self.generated_tokens + self.verifier_tokens + self.verifier_shared_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Usage:
        """What `to_dict` gave; of older results without what is not counted any more."""
        return cls(**{name: value for name, value in values.items() if name != "evicted_tokens"})

    def to_dict(self) -> dict[str, int | float]:
        return asdict(self)


@contextmanager
def read_by_verifier(read: Sequence[tuple[Usage, int]]) -> Iterator[None]:
    """A call of a verifier, which reads so many tokens on each meter and generates nothing.

    A budget counts them whether they are computed or found in the tree, so that no result depends
    on what other problems left there.
    """
    before = [usage.budgeted_tokens for usage, _ in read]
    yield
    for (usage, tokens), counted in zip(read, before, strict=True):
        usage.verifier_shared_tokens += tokens - (usage.budgeted_tokens - counted)


def count_pass(usages: Iterable[Usage]) -> None:
    for usage in distinct(usages):
        usage.forward_passes += 1


def distinct(usages: Iterable[Usage]) -> list[Usage]:
    return list({id(usage): usage for usage in usages}.values())


def by_meter(usages: Iterable[Usage]) -> list[tuple[Usage, list[int]]]:
    """Each meter once, with its places among these."""
    meters: dict[int, tuple[Usage, list[int]]] = {}
    for place, usage in enumerate(usages):
        meters.setdefault(id(usage), (usage, []))[1].append(place)
    return list(meters.values())
