"""A run in parts: which problems a shard has, what its folder is called, and how many threads it
takes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TypeVar

from omegaconf import DictConfig

from ttc.errors import InvalidInput

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    @classmethod
    def read(cls, text: str) -> Shard:
        """From "2/4". Raises InvalidInput for anything else."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InvalidInput(
                f"run.shard={text} is no part of a whole; the second of four is run.shard=2/4"
            )
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of_run(cls, config: DictConfig) -> Shard | None:
        text = config.run.get("shard")
        return None if text is None else cls.read(text)

    def name(self, run: str) -> str:
        return f"{run}-shard{self.index}of{self.count}"

    def select(self, items: list[T]) -> list[T]:
        """Every `count`-th: long and short problems often lie in the order of the data."""
        return items[self.index - 1 :: self.count]


def threads(config: DictConfig) -> int | None:
    """How many threads this process should use; None for what the libraries choose by themselves.

    run.threads, else a shard's share of this machine's cores, unless OMP_NUM_THREADS or a Slurm job
    says otherwise.
    """
    count = config.run.get("threads")
    if count is not None:
        if count < 1:
            raise InvalidInput(f"run.threads={count} must be at least 1, or null")
        return int(count)
    shard = Shard.of_run(config)
    if shard is None or "OMP_NUM_THREADS" in os.environ or "SLURM_JOB_ID" in os.environ:
        return None
    # macOS does not say which cores a process may use
    many = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, many // shard.count)
