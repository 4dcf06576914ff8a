"""The two tiers, each under a byte budget, and the link between them."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from decimal import ROUND_CEILING, Context
from typing import Any

import torch

from ttc.errors import OutOfMemory
from ttc.memory.link import Link, Transfer


def as_budget(nbytes: int) -> str:
    """`nbytes` in words, the GiB rounded up so that a budget of them is enough."""
    gib = Context(prec=4, rounding=ROUND_CEILING).divide(nbytes, 2**30)
    return f"{nbytes:,} bytes ({gib:f} GiB)"


class Tier:
    """Bytes in use in one tier, and the most that may be; None for no limit but the machine's.

    models: how many models keep KV here, under the one budget. ceiling_bytes: what a budget that follows free memory
    may not exceed.
    What was given back while a transfer still used it is there until that is done. It counts in `peak_bytes`; whoever
    needs the room waits for it (`Tiers.claim`), so it does not count in `used_bytes`.
    """

    def __init__(self, name: str, budget_bytes: int | None):
        self.name, self.budget_bytes, self.models = name, budget_bytes, 1
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
        under_way = [transfer for transfer in transfers if transfer is not None and not transfer.done]
        if nbytes and under_way:
            self.leaving.append((nbytes, under_way))

    @property
    def leaving_bytes(self) -> int:
        """What transfers under way still hold of what was given back."""
        self.leaving = deque(item for item in self.leaving if not all(transfer.done for transfer in item[1]))
        return sum(nbytes for nbytes, _ in self.leaving)

    def require(self, nbytes: int, beside_bytes: int | None = None) -> None:
        """Raise `OutOfMemory` unless `nbytes` fit beside what is in use (or beside `beside_bytes` of it)."""
        used = self.used_bytes if beside_bytes is None else beside_bytes
        if self.budget_bytes is not None and used + nbytes > self.budget_bytes:
            shared = f", which {self.models} models share," if self.models > 1 else ""
            raise OutOfMemory(
                f"the {self.name} KV budget of {self.budget_bytes:,} bytes{shared} is too small: {used:,} are in use "
                f"and {nbytes:,} more are needed; a budget of {as_budget(used + nbytes)} would do, or use fewer beams, "
                "shorter steps or a smaller batch"
            )


class Tiers(ABC):
    """Where KV and recurrent states lie: the device, the host, and the link between them.

    fixed: what layers that run on the host keep there; it never moves, and counts in no budget.
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

    @abstractmethod
    def require_host(self, nbytes: int, beside: Iterable[Any] = ()) -> None:
        """Raise OutOfMemory unless `nbytes` fit on the host, for which spare copies are given up, none of `beside`."""

    def claim(self, tier: Tier, nbytes: int) -> None:
        """See that `nbytes` fit now: wait for what is on its way out if they do not fit beside it.

        Raises OutOfMemory when they would not fit even then.
        """
        tier.require(nbytes)
        while tier.leaving_bytes and tier.leaving_bytes + nbytes > tier.free_bytes:
            for transfer in tier.leaving.popleft()[1]:
                with suppress(Exception):  # whoever needs its result is told
                    self.link.wait_on_host(transfer)


@contextmanager
def as_out_of_memory(tier: Tier, nbytes: int) -> Iterator[None]:
    """Turn an allocator's failure into the project's own error."""
    try:
        yield
    except RuntimeError as error:  # of which torch.OutOfMemoryError is one
        words = ("can't allocate", "out of memory")
        if not isinstance(error, torch.OutOfMemoryError) and not any(word in str(error) for word in words):
            raise
        raise OutOfMemory(
            f"the machine has no room for {nbytes:,} bytes of KV in the {tier.name} tier, beside {tier.used_bytes:,} "
            "bytes of KV there; set or lower the tier's budget (memory.budget_gib, memory.host_budget_gib), or use "
            "fewer beams, shorter steps or a smaller batch"
        ) from error
