"""LBS's baseline: of what branches of a group share, each has a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ttc.attention.pieces import Piece, private_pieces
from ttc.memory.storage import Storage

if TYPE_CHECKING:
    from ttc.residency.base import Paths, Residency

Stretch = tuple[Storage, int, int]
"""A storage, and from which of its tokens to which."""

Copied = list[tuple[Stretch, Storage]]


class PrivateCopies:
    """Those of the group at work, and of the next one as far as they came ahead, where `prefetch`
    says so. layers_seen: in which a row at a position sees any of the tokens up to another."""

    def __init__(
        self, policy: Residency, prefetch: bool, layers_seen: Callable[[int, int], list[int]]
    ):
        self.policy = policy
        self.prefetch = prefetch
        self.layers_seen = layers_seen
        self.here: Copied = []
        self.ahead: Copied = []

    def enter(self, coming: Sequence[Paths], own_bytes: int) -> None:
        """The first group begins; the next one's copies come as far as there is room."""
        policy = self.policy
        self._drop(self.here)
        self.here, self.ahead = self.ahead, []
        there = [part for part, _ in self.here]
        lacking = []
        for needed in self._parts(coming[0]):
            if needed[0] in there:
                there.remove(needed[0])
            else:
                lacking.append(needed)
        policy.make_room(own_bytes + sum(self._bytes(*needed) for needed in lacking))
        for needed in lacking:
            self.here.append(self._copy(*needed, "group"))
        for needed in self._parts(coming[1]) if self.prefetch and coming[1:] else ():
            if not policy.make_room(own_bytes + self._bytes(*needed)):
                break
            self.ahead.append(self._copy(*needed, "prefetch"))
        policy.memory.wait(copy for _, copy in self.here)

    def pieces(self, paths: Paths, counts: Sequence[int], ends: Sequence[int]) -> list[Piece]:
        """Of each path a copy with all layers that it sees, and what it has written since."""
        left = list(self.here)
        positions = dict(zip(accumulate(counts, initial=0), ends, strict=False))  # by first rows
        pieces = []
        for piece in private_pieces(paths, counts, ends):
            position = positions[piece.rows.start]
            own = self._copy_of(piece, position, left)
            if own is not None:
                left.remove(own)
                pieces.append(Piece(own[1], 0, own[1].filled, piece.rows))
            first = piece.first if own is None else own[0][2]
            if first < (end := piece.first + piece.length):
                pieces.append(Piece(piece.kv, first, end - first, piece.rows))
        return pieces

    def _copy_of(self, piece: Piece, position: int, left: Copied) -> tuple[Stretch, Storage] | None:
        """The longest copy of a piece with all layers that a row sees, and of these the one with
        the fewest."""
        candidates = [
            (part, copy)
            for part, copy in left
            if part[:2] == (piece.kv, piece.first) and part[2] <= piece.first + piece.length
            if all(copy.device[n] for n in self.layers_seen(piece.kv.start + part[2], position))
        ]
        return max(candidates, key=lambda own: (own[0][2], own[1].device.count(None)), default=None)

    def rewound(self, storage: Storage) -> None:
        """Others write a storage from its end on: copies of what was there before are of nobody."""
        for copies in (self.here, self.ahead):
            stale = [own for own in copies if own[0][0] is storage and own[0][2] > storage.filled]
            copies[:] = [own for own in copies if own not in stale]
            self._drop(stale)

    def close(self) -> None:
        self._drop(self.here)
        self._drop(self.ahead)

    def _parts(self, paths: Paths) -> Iterator[tuple[Stretch, int]]:
        """What each path needs a copy of, and the position from which it is read."""
        for path in paths:
            position = path[-1].end if path else 0
            for piece in private_pieces([path], [1], [position]):
                yield (piece.kv, piece.first, piece.first + piece.length), position

    def _bytes(self, part: Stretch, position: int) -> int:
        storage, first, end = part
        sizes = self.policy.memory.layer_bytes
        layers = self.layers_seen(storage.start + end, position)
        return (end - first) * sum(sizes[layer] for layer in layers)

    def _copy(self, part: Stretch, position: int, cause: str) -> tuple[Stretch, Storage]:
        storage, first, end = part
        layers = self.layers_seen(storage.start + end, position)
        copy = self.policy.memory.copy(storage, first, end, cause, layers)
        self.policy.writing[copy] = None  # it stays
        return part, copy

    def _drop(self, copies: Copied) -> None:
        for _, copy in copies:
            self.policy.free(copy)
        copies.clear()
