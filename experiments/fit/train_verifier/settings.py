"""What `experiments.train_verifier` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainConfig:
    """Described by `python -m experiments.train_verifier --help`."""

    folder: str = "???"
    record: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    problems: int = 400
    validation: float = 0.2
    rollouts: int = 8
    continuations: int = 4
    labels: str = "soft"
    temperature: float = 0.8
    step_tokens: int = 32
    max_steps: int = 8
    separator: str = "\n"
    prompt: str | None = None
    samples: int = 16
    lora_rank: int = 0
    epochs: int = 2
    learning_rate: float = 2e-4
    batch: int = 16
