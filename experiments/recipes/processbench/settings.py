"""What `experiments.processbench` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ttc.checks import PositiveInt


@dataclass
class ProcessBenchConfig:
    """data: a file or a folder of ProcessBench's; null for the hub.
    limit: the first N samples of each part.
    threshold: a step with a lower score is wrong; or gsm8k, the threshold with the highest F1 on
        that part, as the paper has it for Skywork's models.
    batch: samples that are rated together.
    """

    data: str | None = None
    limit: PositiveInt | None = None
    threshold: Any = 0.5
    batch: PositiveInt = 8
