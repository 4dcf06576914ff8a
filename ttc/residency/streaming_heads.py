"""Which KV heads need all of their context (retrieval heads), and which its beginning and end alone (streaming heads).

HeadInfer, appendix D: found by running the model on a text and looking at where its attention goes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan import ExtendPlan, Piece
from ttc.errors import InvalidInput
from ttc.memory.kv import KV
from ttc.memory.manager import KVMemory

if TYPE_CHECKING:
    from ttc.engine import Engine


class _Observer(ExtendPlan):
    """A prefill in one pass that notes how much attention each KV head pays to sink and window."""

    def __init__(self, memory: KVMemory, kv: KV, tokens: int, sink: int, window: int):
        super().__init__([], range(tokens), [Piece(slice(0, tokens), [(kv, 0, tokens)])], memory)
        place = torch.arange(tokens, device=memory.link.device)
        behind = place[:, None] - place[None]  # (rows, keys)
        self.causal, self.near = behind >= 0, (behind >= 0) & ((behind < window) | (place < sink)[None])
        self.far_rows = place >= sink + window  # earlier rows have nothing else to look at
        self.shares: list[Tensor] = []

    def attend_tails(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        shares = []
        for head, keys in enumerate(key):
            scores = (q[head].float() * layer.scale) @ keys.float().T  # (groups, rows, keys)
            weights = scores.masked_fill_(~self.causal, float("-inf")).softmax(-1)
            shares.append((weights * self.near).sum(-1)[:, self.far_rows].mean())
        self.shares.append(torch.stack(shares))
        return super().attend_tails(layer, q, key, value)


@torch.inference_mode()
def near_attention(engine: Engine, tokens: Sequence[int], sink: int, window: int) -> list[list[float]]:
    """The share of its attention that each KV head pays to the first `sink` and the last `window` tokens, by layer and
    head, averaged over the rows of `tokens` that have more than these to look at."""
    if len(tokens) <= 2 * (sink + window):
        raise InvalidInput(
            f"{len(tokens)} tokens are too few to tell heads apart with a sink of {sink} and a window of {window}; "
            f"give more than {2 * (sink + window)}"
        )
    kv = engine.memory.allocate(len(tokens))
    try:
        plan = _Observer(engine.memory, kv, len(tokens), sink, window)
        engine.forward(list(tokens), plan, keep=[len(tokens) - 1])
    finally:
        engine.memory.free(kv)
    return [layer.tolist() for layer in plan.shares]


def streaming_heads(shares: Sequence[Sequence[float]], fraction: float) -> list[tuple[int, int]]:
    """The (layer, head) pairs of the given fraction of heads that look least beyond sink and window."""
    if not 0 <= fraction <= 1:
        raise InvalidInput(f"a fraction of {fraction} of the heads is not between 0 and 1")
    ranked = sorted((-share, layer, head) for layer, row in enumerate(shares) for head, share in enumerate(row))
    return sorted((layer, head) for _, layer, head in ranked[: round(fraction * len(ranked))])


def save_streaming_heads(path: str | Path, model: str, heads: Sequence[tuple[int, int]], **details: object) -> None:
    """Write the file that `Headwise(streaming_heads=...)` reads."""
    content = {"model": model, **details, "streaming_heads": [list(pair) for pair in heads]}
    Path(path).write_text(json.dumps(content) + "\n", encoding="utf-8")


def load_streaming_heads(path: str | Path, kv_heads: Sequence[int]) -> frozenset[tuple[int, int]]:
    """The heads that a file names. kv_heads: KV heads of each layer of the model at hand; a file that names another is
    refused."""
    name = f"streaming_heads={str(path)!r}"
    try:
        pairs = json.loads(Path(path).read_text(encoding="utf-8"))["streaming_heads"]
        heads = frozenset((int(layer), int(head)) for layer, head in pairs)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{name} is not a file of `python -m experiments.heads`: {error}") from error
    for layer, head in sorted(heads):
        if not (0 <= layer < len(kv_heads) and 0 <= head < kv_heads[layer]):
            raise InvalidInput(
                f"{name} names head {head} of layer {layer}, which this model of {len(kv_heads)} layers does not have; "
                "make a file for it with `python -m experiments.heads`"
            )
    return heads
