"""Training on trees: each token goes through the model once, however many leaves share it.

The rollouts of a batch, prompts included, are merged into one tree, whose nodes are tokens. They
become one row in which each token attends its ancestors alone. A shared token counts for each leaf
below it, so that loss and gradients are those of the separate rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.fit.rollouts.rollout import Rollout
from ttc.errors import UnsupportedModel


@dataclass(frozen=True)
class PackedTree:
    """tokens: (tokens,). positions: (tokens,), each token's place in its sequence. parents:
    (tokens,), where the token before it stands, -1 for a first one. weights: (tokens,), the sum of
    the advantages that it has on the leaves below it; 0 for tokens that are not trained on.
    rows: how many tokens the separate rows have. completions: how many of these are completions.
    """

    tokens: Tensor
    positions: Tensor
    parents: Tensor
    weights: Tensor
    rows: int
    completions: int

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], advantages: Sequence[Sequence[float]]) -> PackedTree:
        """advantages: of each token of each completion."""
        places: dict[tuple[int, int], int] = {}
        tokens: list[int] = []
        positions: list[int] = []
        parents: list[int] = []
        weights: list[float] = []
        rows = completions = 0
        for rollout, values in zip(rollouts, advantages, strict=True):
            sequence = [*rollout.prompt_ids, *rollout.completion_ids]
            gains = [*[0.0] * len(rollout.prompt_ids), *values]
            rows += len(sequence)
            completions += len(values)
            parent = -1
            for position, (token, gain) in enumerate(zip(sequence, gains, strict=True)):
                place = places.setdefault((parent, token), len(tokens))
                if place == len(tokens):
                    tokens.append(token)
                    positions.append(position)
                    parents.append(parent)
                    weights.append(0.0)
                weights[place] += gain
                parent = place
        return cls(
            torch.tensor(tokens),
            torch.tensor(positions),
            torch.tensor(parents),
            torch.tensor(weights),
            rows,
            completions,
        )

    def attended(self) -> Tensor:
        """Which tokens each token attends: itself and its ancestors. (tokens, tokens), bool."""
        attended = torch.eye(len(self.tokens), dtype=torch.bool)
        for place, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                attended[place] |= attended[parent]
        return attended


def policy_loss(model: Any, packed: PackedTree) -> Tensor:
    """Minus the sum over all rows' tokens of advantage times log-probability, over the number of
    their completions' tokens: the gradient of GRPO where the policy is the one that has sampled,
    with the mean over tokens of DAPO (Yu et al., 2025). () in the model's type.

    model: of transformers, over its own attention (`ttc.Engine.lent`), which takes a mask of four
    dimensions. Raises UnsupportedModel where its window is shorter than a row.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    longest = int(packed.positions.max()) + 1
    if window is not None and window < longest:
        raise UnsupportedModel(
            f"{type(model).__name__} attends to {window} tokens, and a row has {longest}; a packed "
            "tree has no window, so train on shorter rows, or on each row alone"
        )
    device = model.device
    trained = packed.weights.nonzero().flatten()
    before, kept = packed.parents[trained].unique(return_inverse=True)
    mask = torch.zeros(1, 1, *[len(packed.tokens)] * 2, dtype=model.dtype)
    mask.masked_fill_(~packed.attended(), torch.finfo(model.dtype).min)
    logits = model(
        input_ids=packed.tokens[None].to(device),
        position_ids=packed.positions[None].to(device),
        attention_mask=mask.to(device),
        logits_to_keep=before.to(device),
        use_cache=False,
    ).logits[0]
    logprobs = logits.log_softmax(-1)[kept.to(device), packed.tokens[trained].to(device)]
    weights = packed.weights[trained].to(device, logprobs.dtype)
    return -(weights * logprobs).sum() / packed.completions
