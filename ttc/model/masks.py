"""What tokens see, by a model's masks: every earlier token, within the sliding window that attention is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ttc.errors import UnsupportedModel
from ttc.model.recording import Call

LONGEST_MASK = 8192
"""The longest window of a model whose masks depend on its tokens: such a mask must be built whole to be checked."""

NOT_STATED = tuple(2**i + 1 for i in range(5, 17))
"""Positions at which masks are checked beside the stated windows, for windows that the configuration does not name."""

LongMasks = Callable[[int, Iterable[int]], dict[int, Tensor | None]]
"""(tokens, layers) to the masks that the model builds for those layers over so many tokens."""


def check_masks(calls: Sequence[Call], windows: Sequence[int], most: int, long_masks: LongMasks) -> None:
    """Each layer's mask must be causal with the window that its attention function is told, near and far.

    windows: the lengths that the configuration states. most: the model's context, in tokens.
    Masks are not built over windows of thousands of tokens: transformers' rule of a mask is asked for single rows.
    Raises UnsupportedModel.
    """
    kinds: dict[tuple[int, int | None], tuple[Call, Tensor]] = {}
    for call in calls:
        if call.mask is None:
            raise UnsupportedModel(f"layer {call.layer} builds no causal mask")
        kinds.setdefault((id(call.mask), call.window), (call, call.mask))
    tokens = calls[0].query.shape[2]
    for call, mask in kinds.values():
        _check_rows(call, mask, range(tokens))
    stated = {p for n in windows for p in (n - 1, n, n + 1, 2 * n - 1, 2 * n, 3 * n + 1)}
    far = sorted(p for p in stated | set(NOT_STATED) if tokens <= p < most)
    try:
        for call, mask in kinds.values():
            row = mask.row  # type: ignore[attr-defined]
            for position in far:
                _check_rows(call, row(position), [position])
    except (AttributeError, IndexError):  # the model changed the mask, or the mask's rule looks at tokens
        long = [n for n in windows if tokens <= n < most]
        if long:
            _check_long_masks([call for call, _ in kinds.values()], long, most, long_masks)


def _check_long_masks(calls: Sequence[Call], windows: Sequence[int], most: int, long_masks: LongMasks) -> None:
    if max(windows) > LONGEST_MASK:
        raise UnsupportedModel(
            f"its masks depend on more than positions, and with a window of {max(windows)} tokens they cannot be "
            f"checked; {LONGEST_MASK} is the longest that can"
        )
    tokens = min(2 * max(windows) + 2, most)
    masks = long_masks(tokens, [call.layer for call in calls])
    for call in calls:
        mask = masks[call.layer]
        if mask is None:
            raise UnsupportedModel(f"layer {call.layer} builds no causal mask")
        rows = sorted({p for n in windows for p in (n - 1, n, n + 1, 2 * n, 2 * n + 1) if p < tokens})
        _check_rows(call, mask[..., rows, :], rows)


def _check_rows(call: Call, mask: Tensor, positions: Sequence[int]) -> None:
    """mask: (..., rows, keys), for tokens at `positions`; True or 0 where a token is seen."""
    q = torch.tensor(positions, device=mask.device)[:, None]
    k = torch.arange(mask.shape[-1], device=mask.device)
    expected = k <= q
    if call.window is not None:
        expected &= k > q - call.window
    visible = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((visible | (mask <= -1e4)).all()):
        raise UnsupportedModel(f"layer {call.layer} adds a bias to its scores, which the engine does not know")
    wrong = (visible != expected).flatten(0, -3).any(0).nonzero()
    if len(wrong):
        row, key = wrong[0].tolist()
        sees = "does not see" if bool(expected[row, key]) else "sees"
        told = "no sliding window" if call.window is None else f"a sliding window of {call.window}"
        raise UnsupportedModel(
            f"in layer {call.layer} the token at position {positions[row]} {sees} the one at {key}, but the attention "
            f"function is told of {told}; the engine cannot know what the model masks"
        )


def stated_windows(config: Any) -> list[int]:
    """The lengths in a configuration that may bound what a token sees."""
    return sorted(set(_lengths(config.to_dict())))


def _lengths(fields: dict[str, Any]) -> Iterator[int]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _lengths({str(k): v for k, v in value.items()})
        elif any(word in name for word in ("window", "chunk", "local")) and "layer" not in name:
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int) and number > 1:
                    yield number
