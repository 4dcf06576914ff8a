"""What tokens see, by a model's masks: all earlier tokens, a sliding window of them, or a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from ttc.errors import UnsupportedModel, refuse
from ttc.model.check.recording import AttentionCall

LONGEST_MASK = 8192
"""The longest window where masks depend on tokens: there a mask is built whole to be checked."""

FAR_POSITIONS = tuple(2**i + 1 for i in range(5, 17))
"""Where masks are checked for windows that the configuration does not state."""

LongMasks = Callable[[int, Iterable[int]], dict[int, Tensor | None]]
"""(tokens, layers) to the masks that the model builds for those layers over so many tokens."""


class Sight(NamedTuple):
    """What a token sees beside causality: its sliding window or chunk; None for all tokens."""

    window: int | None = None
    chunk: int | None = None

    def __str__(self) -> str:
        if self.chunk is not None:
            return f"chunks of {self.chunk}"
        return "no sliding window" if self.window is None else f"a sliding window of {self.window}"


def check_masks(
    calls: Sequence[AttentionCall], windows: Sequence[int], context: int, long_masks: LongMasks
) -> list[Sight]:
    """What each call's tokens see.

    Each mask must be causal, with one sliding window, chunks of one length or neither, near and
    far. The window is the one that the attention function is told; where it is told none, the
    length among `windows` that the mask agrees with.

    windows: the lengths that the configuration states. context: the model's, in tokens.
    Raises UnsupportedModel.
    """
    check = _MaskCheck(windows, context, long_masks)
    sights: dict[tuple[int, int | None], Sight] = {}
    for call in calls:
        keys, tokens = call.key.shape[2], call.query.shape[2]
        refuse(
            {
                f"layer {call.layer} builds no causal mask": call.mask is None,
                f"layer {call.layer} attends to {keys} keys where there are {tokens} tokens; the "
                "engine knows one key per token": keys != tokens,
            },
            UnsupportedModel,
        )
        kind = id(call.mask), call.sliding_window
        if kind not in sights:
            sights[kind] = check.sight(call)
    return [sights[id(call.mask), call.sliding_window] for call in calls]


@dataclass
class _MaskCheck:
    windows: Sequence[int]
    context: int
    long_masks: LongMasks

    def sight(self, call: AttentionCall) -> Sight:
        sight = Sight(call.sliding_window)
        try:
            self.check(call, sight)
            return sight
        except UnsupportedModel:
            lengths = self.windows if sight.window is None else []
            stated = [*(Sight(window=n) for n in lengths), *(Sight(chunk=n) for n in lengths)]
            for sight in stated:
                with suppress(UnsupportedModel):
                    self.check(call, sight)
                    return sight
            raise

    def check(self, call: AttentionCall, sight: Sight) -> None:
        mask = call.mask
        assert mask is not None
        tokens = call.query.shape[2]
        _check_rows(call, sight, mask, range(tokens))
        edges = {p for n in self.windows for p in (n - 1, n, n + 1, 2 * n - 1, 2 * n, 3 * n + 1)}
        far = sorted(p for p in edges.union(FAR_POSITIONS) if tokens <= p < self.context)
        try:
            row = mask.row  # type: ignore[attr-defined]
            for position in far:
                _check_rows(call, sight, row(position), [position])
        except (AttributeError, IndexError):  # the model changed it, or its rule looks at tokens
            long = [n for n in self.windows if tokens <= n < self.context]
            if long:
                self.check_long(call, sight, long)

    def check_long(self, call: AttentionCall, sight: Sight, windows: Sequence[int]) -> None:
        longest = max(windows)
        if longest > LONGEST_MASK:
            raise UnsupportedModel(
                f"its masks depend on more than positions, and with a window of {longest} tokens "
                f"they cannot be checked; {LONGEST_MASK} is the longest that can"
            )
        tokens = min(2 * longest + 2, self.context)
        mask = self.long_masks(tokens, [call.layer])[call.layer]
        if mask is None:
            raise UnsupportedModel(f"layer {call.layer} builds no causal mask")
        edges = {p for n in windows for p in (n - 1, n, n + 1, 2 * n, 2 * n + 1)}
        rows = sorted(p for p in edges if p < tokens)
        _check_rows(call, sight, mask[..., rows, :], rows)


def _check_rows(call: AttentionCall, sight: Sight, mask: Tensor, positions: Sequence[int]) -> None:
    """mask: (..., rows, keys), for tokens at `positions`; True or 0 where a token is seen."""
    q = torch.tensor(positions, device=mask.device)[:, None]
    k = torch.arange(mask.shape[-1], device=mask.device)
    expected = k <= q
    if sight.window is not None:
        expected &= k > q - sight.window
    if sight.chunk is not None:
        expected &= k // sight.chunk == q // sight.chunk
    visible = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((visible | (mask <= -1e4)).all()):
        raise UnsupportedModel(
            f"layer {call.layer} adds a bias to its scores, and the engine computes none"
        )
    wrong = (visible != expected).flatten(0, -3).any(0).nonzero()
    if len(wrong):
        row, key = wrong[0].tolist()
        sees = "does not see" if bool(expected[row, key]) else "sees"
        raise UnsupportedModel(
            f"in layer {call.layer} the token at position {positions[row]} {sees} the one at "
            f"{key}, but its attention is told of {sight}; the engine serves layers that see every "
            "earlier token, or a sliding window or chunks of a length that the configuration "
            "states, not other masks"
        )


def stated_windows(config: Any) -> list[int]:
    return sorted(set(_lengths(config.to_dict())))


def _lengths(fields: dict[Any, Any]) -> Iterator[int]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _lengths(value)
            continue
        words = str(name)
        bounds = any(word in words for word in ("window", "chunk", "local"))
        if bounds and "layer" not in words:
            numbers = value if isinstance(value, list) else [value]
            yield from (n for n in numbers if isinstance(n, int) and n > 1)


# ---------------------------------------------------------------- windows of the cache


def check_windows(model: Any, sights: Iterable[tuple[int, Sight]], context: int) -> None:
    """Raise UnsupportedModel where a layer's cache, which `generate` makes by the configuration
    alone, keeps less than the layer sees without one: as in a Llama with a `sliding_window` left
    over in its config.json.

    sights: the numbers of layers, and what their tokens see. context: the model's, in tokens.
    """
    supports = getattr(model, "_supports_default_dynamic_cache", None)
    if not hasattr(model, "generate") or supports is None or not supports():
        return  # a reward model does not generate, and others make a cache of their own
    layers = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    for number, sight in sights:
        layer = layers[number] if 0 <= number < len(layers) else None
        if not getattr(layer, "is_sliding", False):
            continue
        window: int = layer.sliding_window  # type: ignore[union-attr]
        sees = min(sight.window or sight.chunk or inf, context)
        if window < sees or (window == 1 and context > 1):
            raise UnsupportedModel(_reason(model, number, window, sight, context))


def _reason(model: Any, number: int, window: int, sight: Sight, context: int) -> str:
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "layer_types", None) is not None:
        field = "layer_types"
        remedy = "correct layer_types in its config.json"
    else:
        by_window = getattr(config, "sliding_window", None) is not None
        field = "sliding_window" if by_window else "attention_chunk_size"
        remedy = (
            f"remove {field} from its config.json or set it to the model's context, {context} (in "
            f"Python: model.config.{field} = {context})"
        )
    if window == 1 and sight.window == 1:
        return (
            "transformers contradicts itself: its attention has a window of 1 token, and its cache "
            "keeps all tokens under such a window; set sliding_window in its config.json to the "
            f"window that is meant, or {remedy}"
        )
    return (
        f"transformers contradicts itself: in a run without a cache layer {number} has {sight}, "
        f"and the cache of generate keeps a window of {window} tokens by {field} in its "
        f"configuration. If no window is meant, {remedy}"
    )
