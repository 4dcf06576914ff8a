"""What verifiers read: a budget counts it whether it is computed or found in the tree, so that no
result depends on what other problems left there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ttc.tree.branch import Branch
from ttc.tree.segment import MIN_SHARED_TOKENS, common_prefix
from ttc.usage import Usage


def present(held: Sequence[int], tokens: Sequence[int]) -> int:
    """How many first tokens of a text a tree that holds another surely shares with it."""
    shared = common_prefix(held, tokens)
    return shared if shared == len(held) else max(0, shared - MIN_SHARED_TOKENS + 1)


def tokens_to_read(texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> int:
    """The tokens of texts beyond what is read already, those of a common beginning once.

    texts: each with one that was read before, or with nothing.
    """
    ordered = sorted((list(text), list(known)) for text, known in texts)
    before: Sequence[int] = ()
    count = 0
    for text, known in ordered:
        count += len(text) - max(present(known, text), present(before, text))
        before = text
    return count


def by_meter(branches: Sequence[Branch]) -> list[tuple[Usage, list[int]]]:
    """The usage meters of branches, each with the places of its branches."""
    found: dict[int, tuple[Usage, list[int]]] = {}
    for place, branch in enumerate(branches):
        found.setdefault(id(branch.usage), (branch.usage, []))[1].append(place)
    return list(found.values())


@contextmanager
def read_by_verifier(read: Sequence[tuple[Usage, int]]) -> Iterator[None]:
    """So many tokens are read on each meter meanwhile, and nothing is generated."""
    before = [usage.budgeted_tokens for usage, _ in read]
    yield
    for (usage, tokens), counted in zip(read, before, strict=True):
        usage.verifier_shared_tokens += tokens - (usage.budgeted_tokens - counted)
