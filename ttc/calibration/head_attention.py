"""How much attention each head pays to the first and the last tokens (HeadInfer, appendix D)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan import Plan, Run
from ttc.engine import Engine
from ttc.errors import InvalidInput
from ttc.memory.storage import Places, Storage


class _Observer(Plan):
    """A prefill in one pass that notes how much attention each KV head pays to sink and window."""

    def __init__(self, storage: Storage, tokens: int, sink: int, window: int, device: torch.device):
        super().__init__([], range(tokens), [Run(slice(0, tokens), [Places(storage, 0, tokens)])])
        place = torch.arange(tokens, device=device)
        distance = place[:, None] - place[None]  # (rows, keys)
        self.causal = distance >= 0
        self.near = self.causal & ((distance < window) | (place < sink)[None])
        self.far_rows = place >= sink + window  # earlier rows have nothing else to look at
        self.shares: list[Tensor] = []

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        shares = []
        for head, keys in enumerate(key):
            scores = (q[head].float() * layer.scale) @ keys.float().T  # (groups, rows, keys)
            weights = scores.masked_fill_(~self.causal, float("-inf")).softmax(-1)
            shares.append((weights * self.near).sum(-1)[:, self.far_rows].mean())
        self.shares.append(torch.stack(shares))
        return super().attend(layer, q, key, value)


@torch.inference_mode()
def near_attention(
    engine: Engine, tokens: Sequence[int], sink: int, window: int
) -> list[list[float]]:
    """The share of attention to the first `sink` and last `window` tokens, by layer and KV head.

    It is averaged over the rows of `tokens` that have more than these to look at.
    """
    needed = 2 * (sink + window)
    if len(tokens) <= needed:
        raise InvalidInput(
            f"{len(tokens)} tokens are too few to tell heads apart with a sink of {sink} and a "
            f"window of {window}; give more than {needed}"
        )
    runner = engine.runner
    storage = Storage.uncounted(runner.shapes, len(tokens), runner.dtype, runner.device)
    plan = _Observer(storage, len(tokens), sink, window, runner.device)
    runner.forward(list(tokens), plan, keep=[len(tokens) - 1])
    return [layer.tolist() for layer in plan.shares]
