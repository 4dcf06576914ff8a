"""New tokens computed: prompts, given tokens, KV that was evicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ttc.backend import Purpose
from ttc.branch import Branch
from ttc.passes.new_tokens import Target, compute
from ttc.passes.runtime import Runtime
from ttc.task import Passes


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model at places of some sequences. places[i]: in sequence i, from its first
    token. computed[i]: the output (width,) at each of them that was computed; what stands in the
    tree already is missing."""

    places: list[set[int]]
    computed: list[dict[int, Tensor]]

    @classmethod
    def at(cls, places: Iterable[Iterable[int]]) -> Outputs:
        sets = [set(numbers) for numbers in places]
        return cls(sets, [{} for _ in sets])

    def of(self, indices: Sequence[int]) -> Outputs:
        """The same for some of the sequences."""
        return Outputs([self.places[i] for i in indices], [self.computed[i] for i in indices])


def prefill(
    runtime: Runtime,
    branches: Sequence[Branch],
    texts: Sequence[Sequence[int]],
    purpose: Purpose,
    outputs: Outputs | None = None,
) -> Passes[None]:
    """Bring the KV of each branch up to all tokens of its text but the last, pass by pass (see
    `compute`). outputs: takes what the model gives at chosen places of the texts."""
    shared = runtime.sharing.rule != "none"
    outputs = outputs or Outputs.at([()] * len(branches))
    targets = {
        Target(
            branch,
            text[:-1],
            branch,
            shared,
            places,
            opening=runtime.opening(branch, len(text) - len(branch.tokens)),
        ): computed
        for branch, text, places, computed in zip(
            branches, texts, outputs.places, outputs.computed, strict=True
        )
    }

    def take(target: Target, places: Sequence[int], rows: Tensor) -> None:
        targets[target].update(zip(places, rows, strict=False))

    yield from compute(runtime, list(targets), purpose, take)
