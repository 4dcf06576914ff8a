"""TRL's GRPOTrainer with the advantages of trees: of each step, by the samples that share it."""

from __future__ import annotations

import math
from typing import Any

import torch

from experiments.fit.rollouts.advantages import check_rule, token_advantages
from experiments.fit.rollouts.rollout import Rollout
from experiments.integrations.trl_rollouts import TreeRolloutFunc
from ttc.errors import InvalidInput

try:
    from trl import GRPOTrainer
except ImportError as error:
    raise ImportError(f"TreeGRPOTrainer needs TRL ({error}): pip install -e '.[train]'") from error


class TreeGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` whose samples are trees.

    rollout_func: a `TreeRolloutFunc`. rule: "treerl", "treepo" or "grpo" (see
    `experiments.fit.rollouts.advantages`). All else is TRL's; its `scale_rewards` is not used.
    """

    def __init__(
        self, *args: Any, rollout_func: TreeRolloutFunc, rule: str = "treerl", **options: Any
    ):
        if not isinstance(rollout_func, TreeRolloutFunc):
            raise InvalidInput(
                f"rollout_func={rollout_func!r} gives no trees; give a TreeRolloutFunc"
            )
        self.rule = check_rule(rule)
        self._scored: torch.Tensor | None = None
        super().__init__(*args, rollout_func=rollout_func, **options)

    def _calculate_rewards(self, *args: Any, **options: Any) -> torch.Tensor:
        """(samples of all processes, reward functions)"""
        rewards: torch.Tensor = super()._calculate_rewards(*args, **options)
        self._scored = rewards
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        rewards = self._rewards(len(inputs))
        training = self.model.training
        size = self.num_generations if training else self.num_generations_eval
        tokens = output["completion_ids"]
        rollouts = []
        for row, ids in zip(inputs, tokens.tolist(), strict=True):
            written = ids[: row["step_ends"][-1]]
            logprobs = [0.0] * len(written)
            path, ends = tuple(row["path"]), row["step_ends"]
            rollouts.append(Rollout([], written, logprobs, path, ends, "", True))
        groups = [
            (rollouts[start : start + size], rewards[start : start + size])
            for start in range(0, len(rollouts), size)
        ]
        advantages = torch.zeros(tokens.shape, dtype=torch.float32)
        rows = [values for group in token_advantages(groups, self.rule) for values in group]
        for place, values in enumerate(rows):
            advantages[place, : len(values)] = torch.tensor(values)
        output["advantages"] = advantages.to(tokens.device)
        return output

    def _rewards(self, count: int) -> list[float]:
        """Of this process's samples: the weighted sum of the reward functions; 0 where none could
        score a sample."""
        assert self._scored is not None
        start = self.accelerator.process_index * count
        scored = self._scored[start : start + count]
        total = (scored * self.reward_weights.to(scored.device)).nansum(dim=1).tolist()
        return [value if math.isfinite(value) else 0.0 for value in total]
