"""Which KV heads need all of their context (retrieval heads), and which its beginning and end alone
(streaming heads): HeadInfer, appendix D."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ttc.errors import InvalidInput, refusing


def streaming_heads(shares: Sequence[Sequence[float]], fraction: float) -> list[tuple[int, int]]:
    if not 0 <= fraction <= 1:
        raise InvalidInput(f"a fraction of {fraction} of the heads is not between 0 and 1")
    ranked = sorted(
        (-share, layer, head) for layer, row in enumerate(shares) for head, share in enumerate(row)
    )
    return sorted((layer, head) for _, layer, head in ranked[: round(fraction * len(ranked))])


def save_streaming_heads(
    path: str | Path, model: str, heads: Sequence[tuple[int, int]], **details: object
) -> None:
    content = {"model": model, **details, "streaming_heads": [list(pair) for pair in heads]}
    Path(path).write_text(json.dumps(content) + "\n", encoding="utf-8")


def load_streaming_heads(path: str | Path, kv_heads: Sequence[int]) -> frozenset[tuple[int, int]]:
    """The heads, each with its layer, that a file names. Raises InvalidInput for one of another
    model."""
    name = f"streaming_heads={str(path)!r}"
    with refusing(
        (OSError, ValueError, KeyError, TypeError),
        f"{name} is not a file of `python -m experiments.heads`: {{error}}",
    ):
        pairs = json.loads(Path(path).read_text(encoding="utf-8"))["streaming_heads"]
        heads = frozenset((int(layer), int(head)) for layer, head in pairs)
    for layer, head in sorted(heads):
        if not (0 <= layer < len(kv_heads) and 0 <= head < kv_heads[layer]):
            raise InvalidInput(
                f"{name} names head {head} of layer {layer}, which this model of {len(kv_heads)} "
                "layers does not have; make a file for it with `python -m experiments.heads`"
            )
    return heads
