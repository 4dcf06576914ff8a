"""What `experiments.train_verifier` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Interval

from ttc.checks import NonEmptyText, NonNegativeFloat, NonNegativeInt, PositiveInt, Share

LEAST = 4
"""The fewest problems to train on."""


@dataclass
class TrainConfig:
    """folder: where what is trained, its card and the data go (outputs/VERIFIER-DATASET).
    verifier: value_head; or token_prm, the language model itself, which says good or bad at a mark
        after each step. That needs lora_rank.
    format: settings of token_prm, as "+train.format.mark=' §'".
    data: how the settings of the data set differ for the problems to train on, as
        +train.data.KEY=VALUE; by default another seed for generated problems, and for the hub the
        split that solved examples come from.
    problems: problems to train on; dataset.limit says how many to test on.
    validation: the share of them that the strength of regularisation is chosen on.
    rollouts: solutions of each problem.
    continuations: continuations from the end of each step, which say what the step is worth.
    labels: soft, the share of right continuations; hard, whether any is right; outcome, whether the
        solution itself is right.
    temperature: of solutions, continuations and samples.
    step_tokens: tokens of a step at most.
    max_steps: steps of a solution at most.
    separator: what ends a step.
    prompt: what the head reads before a solution, {question} in it; null for the model's own.
    lora_rank: LoRA adapters of this rank are trained with the head, by peft; 0 for the head alone.
    epochs: with adapters, how often the solutions are read.
    learning_rate: with adapters, the highest one.
    batch: with adapters, solutions of a training step.
    samples: best-of-n on the problems to test.
    seeds: how often the problems to test are solved, from run.seed on; figures are means.
    record: also write the figures to this file.
    """

    folder: str = "???"
    verifier: str = "value_head"
    format: dict[str, Any] = field(default_factory=dict)
    record: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    problems: Annotated[int, Ge(LEAST)] = 400
    validation: Annotated[float, Interval(gt=0, lt=1)] = 0.2
    rollouts: PositiveInt = 8
    continuations: NonNegativeInt = 4
    labels: str = "soft"
    temperature: NonNegativeFloat = 0.8
    step_tokens: PositiveInt = 32
    max_steps: PositiveInt = 8
    separator: NonEmptyText = "\n"
    prompt: str | None = None
    samples: PositiveInt = 16
    seeds: PositiveInt = 1
    lora_rank: NonNegativeInt = 0
    epochs: PositiveInt = 2
    learning_rate: Share = 2e-4
    batch: PositiveInt = 16
