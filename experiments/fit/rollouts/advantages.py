"""How much better a step did than the others: the advantages of GRPO, TreeRL and TreePO.

Each rule takes one problem's leaves, by their paths in the tree, with the reward of each. It gives
each leaf a value for every step on the way to it, the first step first. A step's node is named by
the path up to it; L(s) are the leaves below node s, and V(s) is their mean reward.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev, stdev
from typing import Literal, get_args

from experiments.fit.rollouts.rollout import Path, Rollout
from ttc.errors import InvalidInput
from ttc.wording import number_of

Rule = Literal["grpo", "treerl", "treepo"]
EPSILON = 1e-4
"""What GRPO adds to a standard deviation before it divides by it, as in TRL."""


def grpo(paths: Sequence[Path], rewards: Sequence[float]) -> list[list[float]]:
    """GRPO (Shao et al., 2024, section 4.1.2): A_i = (r_i - mean(r)) / (std(r) + 1e-4), the same
    for all steps of a leaf; the tree is not looked at."""
    spread = stdev(rewards) if len(rewards) > 1 else 0.0
    values = [(reward - fmean(rewards)) / (spread + EPSILON) for reward in rewards]
    return [[value] * len(path) for path, value in zip(paths, values, strict=True)]


def treerl(paths: Sequence[Path], rewards: Sequence[float]) -> list[list[float]]:
    """TreeRL (Hou et al., 2025, section 3.3): of a step s after its parent p(s)

    GA(s) = V(s) - V(root), LA(s) = V(s) - V(p(s)), R(s) = (GA(s) + LA(s)) / sqrt(|L(s)|).

    The division makes up for a step being trained on once for each leaf below it.
    """
    below = leaves_below(paths, rewards)
    mean = {node: fmean(under) for node, under in below.items()}

    def of_step(node: Path) -> float:
        gain = 2 * mean[node] - mean[()] - mean[node[:-1]]
        return gain / math.sqrt(len(below[node]))

    return [[of_step(path[: k + 1]) for k in range(len(path))] for path in paths]


def treepo(paths: Sequence[Path], rewards: Sequence[float]) -> list[list[float]]:
    """TreePO (Li et al., 2025): the mean over the nodes s above leaf i of r_i - V(s), the same for
    all steps of a leaf. Nodes other than the root count only where they have several leaves.

    This is the weighting "average" that their training script sets. They then whiten the values
    over the whole batch, token by token (`whitened`).
    """
    below = leaves_below(paths, rewards)

    def of_leaf(path: Path, reward: float) -> float:
        above = [path[:k] for k in range(len(path))]
        groups = [below[node] for node in above if not node or len(below[node]) > 1]
        return fmean(reward - fmean(group) for group in groups)

    values = [of_leaf(path, reward) for path, reward in zip(paths, rewards, strict=True)]
    return [[value] * len(path) for path, value in zip(paths, values, strict=True)]


RULES: dict[Rule, Callable[[Sequence[Path], Sequence[float]], list[list[float]]]] = {
    "grpo": grpo,
    "treerl": treerl,
    "treepo": treepo,
}


def leaves_below(paths: Sequence[Path], rewards: Sequence[float]) -> dict[Path, list[float]]:
    """The rewards of the leaves below each node; () is the root, a leaf is below itself."""
    below: dict[Path, list[float]] = defaultdict(list)
    for path, reward in zip(paths, rewards, strict=True):
        for length in range(len(path) + 1):
            below[path[:length]].append(reward)
    return below


def check_rule(rule: str) -> Rule:
    """Raises InvalidInput for a rule that there is not."""
    for known in get_args(Rule):
        if rule == known:
            return known
    raise InvalidInput(
        f"the rule of advantages {rule!r} is unknown; use one of {', '.join(get_args(Rule))}"
    )


def token_advantages(
    groups: Sequence[tuple[Sequence[Rollout], Sequence[float]]], rule: Rule
) -> list[list[list[float]]]:
    """The advantage of each token of each rollout of each problem: `[problem][rollout][token]`.

    groups: each problem's rollouts with their rewards. Those of TreePO are whitened over all
    problems. Raises InvalidInput where a reward is no finite number, or is missing.
    """
    advantages = []
    for rollouts, rewards in groups:
        if len(rewards) != len(rollouts) or not all(map(math.isfinite, rewards)):
            raise InvalidInput(
                f"there are rewards {list(rewards)} for {number_of(len(rollouts), 'rollout')}; "
                "give each of them one finite number"
            )
        steps = RULES[check_rule(rule)]([rollout.path for rollout in rollouts], rewards)
        pairs = zip(rollouts, steps, strict=True)
        advantages.append([rollout.per_token(values) for rollout, values in pairs])
    return whitened(advantages) if rule == "treepo" else advantages


def whitened(advantages: list[list[list[float]]]) -> list[list[list[float]]]:
    """The values less their mean, over their standard deviation; all 0 where they are equal."""
    flat = [value for group in advantages for row in group for value in row]
    mean, spread = (fmean(flat), pstdev(flat)) if flat else (0.0, 0.0)
    if not spread:
        return [[[0.0] * len(row) for row in group] for group in advantages]
    return [[[(value - mean) / spread for value in row] for row in group] for group in advantages]
