"""A link over which nothing crosses: it counts what would."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.memory.link import Copies, Link, Transfer

NOWHERE = torch.device("meta")
"""Where tensors have sizes and no numbers."""


class DryLink(Link):
    def __init__(self) -> None:
        super().__init__(NOWHERE)

    def fetch(
        self, copies: Copies, cause: str, after: Sequence[Transfer] = (), later: bool = False
    ) -> Transfer:
        return self._count(copies, self.to_device_bytes, cause)

    def store(self, copies: Copies, cause: str, after: Sequence[Transfer] = ()) -> Transfer:
        return self._count(copies, self.to_host_bytes, cause)

    @staticmethod
    def _count(copies: Copies, counter: dict[str, int], cause: str) -> Transfer:
        nbytes = sum(source.numel() * source.element_size() for _, source in copies)
        counter[cause] += nbytes
        return Transfer(nbytes)
