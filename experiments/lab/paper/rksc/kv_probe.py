"""RKSC's KV probe (section 2.2, Table 9): when does sharing a prefix pay? Measured, never
assumed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ttc.branch import Branch
from ttc.engine import Engine
from ttc.errors import InvalidInput
from ttc.tree.sharing import Sharing

BUCKET_TOKENS = 64


@dataclass(frozen=True)
class KVTimes:
    """Seconds, each the least of the probe's repeats, for `branches` prompts of `tokens` +
    `suffix_tokens` tokens.

    full_s: every branch computes all of its prompt. prefix_s: the prefix alone, once. suffix_s: the
    branches' suffixes on the prefix's shared KV, its expansion (forking) included.
    """

    tokens: int
    branches: int
    suffix_tokens: int
    full_s: float
    prefix_s: float
    suffix_s: float

    @property
    def beneficial(self) -> bool:
        return self.prefix_s + self.suffix_s < self.full_s

    @property
    def net_s(self) -> float:
        """What sharing saves; negative where it costs."""
        return self.full_s - self.prefix_s - self.suffix_s

    @property
    def break_even_branches(self) -> float:
        """B*: sharing pays for any number of branches above it; infinite where a suffix costs as
        much as a prompt.

        B full_s / branches = prefix_s + B suffix_s / branches, both rates held constant.
        """
        saved = (self.full_s - self.suffix_s) / self.branches
        return self.prefix_s / saved if saved > 0 else float("inf")


class KVProbe:
    """Times both ways over an engine's model, once for each bucket of 64 prefix tokens and number
    of branches.

    It runs when it is asked, outside of whatever else is timed, on engines of its own under the
    same memory policy.
    repeats: the least of so many counts. Raises InvalidInput for sizes that are not positive or
    don't fit the model's context.
    """

    def __init__(self, engine: Engine, *, suffix_tokens: int = 16, repeats: int = 3):
        for name, value in (("suffix_tokens", suffix_tokens), ("repeats", repeats)):
            if value < 1:
                raise InvalidInput(f"{name}={value} must be at least 1")
        self.shared, self.alone = (
            self._like(engine, Sharing("exact")),
            self._like(engine, Sharing("none")),
        )
        self.suffix_tokens, self.repeats = suffix_tokens, repeats
        self.found: dict[tuple[int, int], KVTimes] = {}

    @staticmethod
    def _like(engine: Engine, sharing: Sharing) -> Engine:
        """An engine with the same model and memory policy (bound to a memory of its own)."""
        options: dict[str, Any] = {
            "prefill_tokens": engine.runtime.prefill_tokens,
            "memory": engine.residency,
        }
        return type(engine)(engine.model, engine.tokenizer, sharing=sharing, **options)

    def times(self, tokens: int, branches: int) -> KVTimes:
        """What was measured for the first length asked of this bucket."""
        if tokens < 2 or branches < 1:
            raise InvalidInput(
                f"a probe needs 2 tokens and a branch at least, not {tokens} and {branches}"
            )
        key = (tokens // BUCKET_TOKENS, branches)
        if key not in self.found:
            self.found[key] = self._measure(tokens, branches)
        return self.found[key]

    def _measure(self, tokens: int, branches: int) -> KVTimes:
        prefix = [3 + n % 97 for n in range(tokens)]
        suffixes = [[100 + b, *([7] * self.suffix_tokens)] for b in range(branches)]
        vocabulary = self.shared.limits.vocab_size
        prefix, suffixes = (
            [t % vocabulary for t in prefix],
            [[t % vocabulary for t in s] for s in suffixes],
        )
        return KVTimes(
            tokens,
            branches,
            self.suffix_tokens,
            min(self._full(prefix, suffixes) for _ in range(self.repeats)),
            min(self._prefix(prefix) for _ in range(self.repeats)),
            min(self._suffixes(prefix, suffixes) for _ in range(self.repeats)),
        )

    def _full(self, prefix: list[int], suffixes: list[list[int]]) -> float:
        root = self.alone.root(prefix)
        made: list[Branch] = []
        try:
            made += self.alone.variants(root, [prefix] * len(suffixes), suffixes).result()
            return self._seconds(lambda: self.alone.extend(made, [[1]] * len(made)).result())
        finally:
            self.alone.release([root, *made])

    def _prefix(self, prefix: list[int]) -> float:
        made: list[Branch] = []
        try:
            return self._seconds(lambda: made.append(self.shared.root(prefix)))
        finally:
            self.shared.release(made)

    def _suffixes(self, prefix: list[int], suffixes: list[list[int]]) -> float:
        root = self.shared.root(prefix)
        made: list[Branch] = []
        try:
            own = [prefix] * len(suffixes)
            return self._seconds(
                lambda: made.extend(self.shared.variants(root, own, suffixes).result())
            )
        finally:
            self.shared.release([root, *made])

    def _seconds(self, call: Callable[[], object]) -> float:
        self._wait()
        start = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.shared.device.type == "cuda":
            torch.cuda.synchronize(self.shared.device)
