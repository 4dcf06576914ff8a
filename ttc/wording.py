"""Words of messages."""

from __future__ import annotations


def number_of(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun, as in `1 problem`. plural: where that is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
