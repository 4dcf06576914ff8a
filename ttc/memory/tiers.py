"""The two tiers, each under a byte budget, and how blocks move between them."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import ROUND_CEILING, Context
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from ttc.errors import OutOfMemory
from ttc.memory.link import Copies, Link, Transfer


def as_budget(nbytes: int) -> str:
    """In words, the GiB rounded up so that a budget of them is enough."""
    gib = Context(prec=4, rounding=ROUND_CEILING).divide(nbytes, 2**30)
    return f"{nbytes:,} bytes ({gib:f} GiB)"


def least_budget(nbytes: int) -> str:
    """What to say of a budget that is too small for what is under way."""
    return (
        f"a budget of {as_budget(nbytes)} at least is needed, and what the search does next may "
        "need more: `python -m experiments.plan` tells what all of it takes"
    )


class Tier:
    """Bytes in use in one tier, and the most that may be; None for no limit but the machine's.

    models: how many keep KV here, under the one budget. ceiling_bytes: what a budget that follows
        free memory may not exceed.
    leaving: what was given back while transfers still use it. It counts in `peak_bytes` alone;
        whoever needs the room waits for it (`Tiers.claim`).
    """

    def __init__(self, name: str, budget_bytes: int | None):
        self.name = name
        self.budget_bytes = budget_bytes
        self.models = 1
        self.ceiling_bytes = sys.maxsize
        self.used_bytes = 0
        self.peak_bytes = 0
        self.leaving: deque[tuple[int, list[Transfer]]] = deque()

    @property
    def free_bytes(self) -> float:
        return float("inf") if self.budget_bytes is None else self.budget_bytes - self.used_bytes

    def take(self, nbytes: int) -> None:
        self.require(nbytes)
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes + self.leaving_bytes)

    def give(self, nbytes: int, transfers: Iterable[Transfer | None] = ()) -> None:
        """Give bytes back, which `transfers` may still use."""
        self.used_bytes -= nbytes
        under_way = [
            transfer for transfer in transfers if transfer is not None and not transfer.done
        ]
        if nbytes and under_way:
            self.leaving.append((nbytes, under_way))

    @property
    def leaving_bytes(self) -> int:
        """What transfers under way still hold of what was given back."""
        self.leaving = deque(
            item for item in self.leaving if not all(transfer.done for transfer in item[1])
        )
        return sum(nbytes for nbytes, _ in self.leaving)

    def require(self, nbytes: int, used_bytes: int | None = None) -> None:
        """Raise OutOfMemory unless `nbytes` fit with what is in use, or will be."""
        used = self.used_bytes if used_bytes is None else used_bytes
        if self.budget_bytes is not None and used + nbytes > self.budget_bytes:
            shared = f", which {self.models} models share," if self.models > 1 else ""
            raise OutOfMemory(
                f"the {self.name} KV budget of {self.budget_bytes:,} bytes{shared} is too small: "
                f"{used:,} are in use and {nbytes:,} more are needed; "
                f"{least_budget(used + nbytes)}. Or use fewer beams, shorter steps or a smaller "
                "batch"
            )


Copy = TypeVar("Copy")


class BlockOf(ABC, Generic[Copy]):
    """What moves between the tiers, piece by piece: of each piece a copy on the device, on the
    host, or both.

    cause: what its bytes count under on the link, None for what whoever moves it says.
    written, fetched: the last transfer to the host copies and to the device copies.
    """

    cause: ClassVar[str | None] = None

    def __init__(self, pieces: int):
        self.device: list[Copy | None] = [None] * pieces
        self.host: list[Copy | None] = [None] * pieces
        self.written: Transfer | None = None
        self.fetched: Transfer | None = None

    @abstractmethod
    def tensors(self, copy: Copy) -> Sequence[Tensor]:
        """What moves of a copy, in the same order for every copy of a piece."""

    @property
    def under_way(self) -> list[Transfer]:
        """Transfers that may still use its tensors."""
        return [transfer for transfer in (self.written, self.fetched) if transfer is not None]

    @property
    def spare(self) -> list[int]:
        """The pieces that are in both tiers."""
        both = zip(self.device, self.host, strict=True)
        return [
            piece for piece, (near, far) in enumerate(both) if near is not None and far is not None
        ]


Block = BlockOf[Any]
"""A storage, or the recurrent state at a segment's end."""


class Tiers(ABC):
    """Where KV and recurrent states lie, and how they move between device and host.

    fixed: what layers that run on the host keep there; it never moves, and counts in no budget.
    make_room: a policy's: has so many bytes free on the device, if it can.
    """

    def __init__(
        self,
        device: torch.device,
        budget_bytes: int | None = None,
        host_budget_bytes: int | None = None,
        link_gbps: float | None = None,
    ):
        self.device = Tier("device", budget_bytes)
        self.host = Tier("host", host_budget_bytes)
        self.fixed = Tier("host", None)
        self.link = Link(device, link_gbps)
        self.make_room: Callable[[int], object] = lambda nbytes: None

    @abstractmethod
    def blocks(self) -> Iterable[Block]:
        """All that lies in the tiers, the first to give up its spare copies first."""

    @abstractmethod
    def piece_bytes(self, block: Block, piece: int) -> int:
        """What a piece takes in a tier that has it."""

    @abstractmethod
    def buffer(self, block: Block, piece: int, host: bool = False) -> Any:
        """Memory for a piece. It is not counted here."""

    @abstractmethod
    def moving(self, block: Block, pieces: Iterable[int] | None) -> list[int]:
        """Those of the pieces (None: all) that may move."""

    # ---------------------------------------------------------------- room

    def bytes_in(self, block: Block, pieces: Iterable[int]) -> int:
        return sum(self.piece_bytes(block, piece) for piece in pieces)

    def tier_bytes(self, block: Block) -> tuple[int, int]:
        """Bytes of a block on the device and on the host."""
        on_device, on_host = (
            self.bytes_in(block, [n for n, copy in enumerate(side) if copy is not None])
            for side in (block.device, block.host)
        )
        return on_device, on_host

    def claim_device(self, nbytes: int) -> None:
        """See that `nbytes` fit on the device, asking the policy for room. Raises OutOfMemory."""
        if self.device.free_bytes < nbytes:
            self.make_room(nbytes)
        self.claim(self.device, nbytes)

    def claim(self, tier: Tier, nbytes: int) -> None:
        """See that `nbytes` fit now: wait for what is on its way out if need be. Raises OutOfMemory
        when they would not fit even then."""
        tier.require(nbytes)
        while tier.leaving_bytes and tier.leaving_bytes + nbytes > tier.free_bytes:
            for transfer in tier.leaving.popleft()[1]:
                with suppress(Exception):  # whoever needs its result is told
                    self.link.wait_on_host(transfer)

    def require_host(self, nbytes: int, keep: Iterable[Block] = ()) -> None:
        """Raise OutOfMemory unless `nbytes` fit on the host, for which spare copies, not of `keep`,
        are given up."""
        kept = set(keep)
        for block in self.blocks():
            if self.host.free_bytes >= nbytes:
                break
            for piece in block.spare if block not in kept else ():
                block.host[piece] = None
                self.host.give(self.piece_bytes(block, piece), block.under_way)
        self.claim(self.host, nbytes)

    def spare_bytes(self) -> int:
        return sum(self.bytes_in(block, block.spare) for block in self.blocks())

    def give_back(self, block: Block) -> None:
        """Let go of every copy: a transfer under way holds its tensors until it is done."""
        on_device, on_host = self.tier_bytes(block)
        self.device.give(on_device, block.under_way)
        self.host.give(on_host, block.under_way)
        block.device = [None] * len(block.device)
        block.host = [None] * len(block.host)

    # ---------------------------------------------------------------- moving

    def write_back(self, block: Block, cause: str, pieces: Iterable[int] | None = None) -> None:
        """Give device copies of some pieces (None: all) a copy on the host, if they have none."""
        moving = self.moving(block, pieces)
        missing = [n for n in moving if block.device[n] is not None and block.host[n] is None]
        if not missing:
            return
        nbytes = self.bytes_in(block, missing)
        self.require_host(nbytes, [block])
        buffers = {piece: self.buffer(block, piece, host=True) for piece in missing}
        self.host.take(nbytes)
        copies: list[tuple[Tensor, Tensor]] = []
        for piece, copy in buffers.items():
            block.host[piece] = copy
            copies += zip(block.tensors(copy), block.tensors(block.device[piece]), strict=True)
        self.send_to_host(block, copies, cause)

    def evict(self, block: Block, cause: str, pieces: Iterable[int] | None = None) -> None:
        """Drop the device copies of some pieces (None: all), written back first where that is due.
        Waits for it unless CUDA's allocator does."""
        leaving = [n for n in self.moving(block, pieces) if block.device[n] is not None]
        self.write_back(block, cause, leaving)
        for transfer in block.under_way:
            self.link.wait_before_drop(transfer)
        for piece in leaving:
            block.device[piece] = None
        self.device.give(self.bytes_in(block, leaving), block.under_way)

    def missing_bytes(self, block: Block, pieces: Iterable[int]) -> int:
        return self.bytes_in(block, [piece for piece in pieces if block.device[piece] is None])

    def fetch(self, block: Block, cause: str, pieces: Iterable[int] | None = None) -> None:
        """Begin to bring some pieces (None: all) to the device. Once one fetch failed, all that
        follow do."""
        chosen = range(len(block.device)) if pieces is None else pieces
        missing = [piece for piece in chosen if block.device[piece] is None]
        if not missing:
            return
        nbytes = self.bytes_in(block, missing)
        self.claim(self.device, nbytes)
        buffers = {piece: self.buffer(block, piece) for piece in missing}
        self.device.take(nbytes)
        copies: list[tuple[Tensor, Tensor]] = []
        for piece, copy in buffers.items():
            block.device[piece] = copy
            source = block.host[piece]
            assert source is not None, "a piece is in neither tier"
            copies += zip(block.tensors(copy), block.tensors(source), strict=True)
        block.fetched = self.link.fetch(copies, block.cause or cause, block.under_way)

    def send_to_host(self, block: Block, copies: Copies, cause: str) -> None:
        """Send copies to the host side of a block; once one failed, all that follow do."""
        block.written = self.link.store(copies, block.cause or cause, block.under_way)


@contextmanager
def as_out_of_memory(tier: Tier, nbytes: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of which torch.OutOfMemoryError is one
        words = ("can't allocate", "out of memory")
        says_so = any(word in str(error) for word in words)
        if not says_so and not isinstance(error, torch.OutOfMemoryError):
            raise
        raise OutOfMemory(
            f"the machine has no room for {nbytes:,} bytes of KV in the {tier.name} tier, beside "
            f"{tier.used_bytes:,} bytes of KV there; set or lower the tier's budget "
            "(memory.budget_gib, memory.host_budget_gib), or use fewer beams, shorter steps or a "
            "smaller batch"
        ) from error
