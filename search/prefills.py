"""Prefill of whatever backend: pass by pass where it can, else at once."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from ttc.protocols import Backend, Prefill, PrefillsByPass
from ttc.results import Progress
from ttc.tree.branch import Branch

Events = Generator[tuple[int, Progress], None, None]
"""What happened, each with the number of its problem."""

Task = Iterator[tuple[int, Progress] | None]
"""Work that makes passes of the model: what happened, and None after each pass, where it may be
left for a while."""


@dataclass
class MadeAtOnce:
    """The prefill of a backend that does not stop between two passes."""

    branches: list[Branch]

    def step(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is under way."""


def begin_roots(
    backend: Backend, prompts: Sequence[Sequence[int]], seeds: Sequence[int]
) -> Prefill:
    if isinstance(backend, PrefillsByPass):
        return backend.begin_roots(prompts, seeds=seeds)
    return MadeAtOnce(backend.roots(prompts, seeds=seeds))


def begin_variants(
    backend: Backend,
    root: Branch,
    prompts: Sequence[Sequence[int]],
    suffixes: Sequence[Sequence[int]],
) -> Prefill:
    if isinstance(backend, PrefillsByPass):
        return backend.begin_variants(root, prompts, suffixes)
    return MadeAtOnce(backend.variants(root, prompts, suffixes))


def begin_extend(
    backend: Backend, branches: Sequence[Branch], tokens_per_branch: Sequence[Sequence[int]]
) -> Prefill:
    if isinstance(backend, PrefillsByPass):
        return backend.begin_extend(branches, tokens_per_branch)
    backend.extend(branches, tokens_per_branch, purpose="prompt")
    return MadeAtOnce(list(branches))


def passes_of(prefill: Prefill) -> Task:
    try:
        while not prefill.step():
            yield None
    finally:
        prefill.close()
