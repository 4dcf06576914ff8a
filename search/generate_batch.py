"""A batch for backends that have `generate` alone: what was added decodes a step in one call."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ttc.errors import BranchRefused, InvalidInput, RemoteError
from ttc.protocols import Backend, Step
from ttc.sampling import SAMPLED, Sampling
from ttc.tree.branch import Branch


@dataclass
class GenerateBatch:
    """Branches that wait for the next call of `backend.generate` (see `ttc.protocols.Batch`).

    added: branches and the limits of their tokens, by the options of the call that they will be
    part of: stop, end, sampling, statistics.
    """

    backend: Backend
    added: dict[tuple[Any, ...], list[tuple[Branch, int]]] = field(default_factory=dict)

    def add(
        self,
        branches: Sequence[Branch],
        step: Step,
        sampling: Sampling = SAMPLED,
        limits: Sequence[int] | None = None,
    ) -> None:
        """See `ttc.protocols.Batch`; steps of different lengths go together. Raises InvalidInput
        where the step asks for statistics that the backend does not offer."""
        generate = self.backend.generate
        if step.statistics and "statistics" not in inspect.signature(generate).parameters:
            raise InvalidInput(
                f"Step.statistics=True, and {type(self.backend).__name__}.generate offers no "
                "statistics; leave it out, or use ttc.Engine"
            )
        options = step.delimiters, tuple(step.end), sampling, step.statistics
        step_tokens = [step.max_tokens] * len(branches) if limits is None else limits
        self.added.setdefault(options, []).extend(zip(branches, step_tokens, strict=True))

    def step(self) -> list[Branch]:
        """One call of `generate` for all that have the same options."""
        ended: list[Branch] = []
        while self.added:
            options = next(iter(self.added))
            stop, end, sampling, statistics = options
            asked = self.added.pop(options)
            branches = [branch for branch, _ in asked]
            limits = [limit for _, limit in asked]
            max_tokens: int | list[int] = limits[0] if len(set(limits)) == 1 else limits
            more = {"statistics": True} if statistics else {}
            try:
                self.backend.generate(
                    branches, max_tokens, stop=stop, end=end, sampling=sampling, **more
                )
            except BranchRefused as refusal:  # the others' step is lost with it
                raise RemoteError(str(refusal)) from refusal
            ended += branches
        return ended

    def withdraw(self, branches: Sequence[Branch]) -> None:
        released = set(branches)
        for asked in self.added.values():
            asked[:] = [(branch, limit) for branch, limit in asked if branch not in released]

    def close(self) -> None:
        self.added.clear()

    def fits(self, tokens: int, states: int) -> float:
        return inf

    def __len__(self) -> int:
        return sum(map(len, self.added.values()))
