"""What tokens see, by a model's masks: every earlier token, or those of a sliding window or of a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

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


class Sight(NamedTuple):
    """Beside causality, what a token sees: the tokens of its sliding window, or of its chunk; None for all."""

    window: int | None = None
    chunk: int | None = None

    def __str__(self) -> str:
        if self.chunk is not None:
            return f"chunks of {self.chunk}"
        return "no sliding window" if self.window is None else f"a sliding window of {self.window}"


def check_masks(calls: Sequence[Call], windows: Sequence[int], most: int, long_masks: LongMasks) -> list[Sight]:
    """Each layer's mask must be causal, with one sliding window, chunks of one length or neither, near and far. Returns
    what each call's tokens see.

    The window is the one that the attention function is told. Some models tell it none and leave a window or chunks to
    the mask; then it is the length among `windows` that the mask agrees with.
    windows: the lengths that the configuration states. most: the model's context, in tokens.
    Masks are not built over windows of thousands of tokens: transformers' rule of a mask is asked for single rows.
    Raises UnsupportedModel.
    """
    kinds: dict[tuple[int, int | None], list[int]] = {}
    for place, call in enumerate(calls):
        if call.mask is None:
            raise UnsupportedModel(f"layer {call.layer} builds no causal mask")
        if call.key.shape[2] != call.query.shape[2]:
            raise UnsupportedModel(
                f"layer {call.layer} attends to {call.key.shape[2]} keys where there are {call.query.shape[2]} tokens; "
                "the engine knows one key per token"
            )
        kinds.setdefault((id(call.mask), call.told_window), []).append(place)
    found = [Sight()] * len(calls)
    for places in kinds.values():
        sight = _sight(calls[places[0]], windows, most, long_masks)
        for place in places:
            found[place] = sight
    return found


def _sight(call: Call, windows: Sequence[int], most: int, long_masks: LongMasks) -> Sight:
    """What a layer's mask agrees with: the window that it is told, or a stated window or chunk if it's told none."""
    told = Sight(call.told_window)
    try:
        _check_mask(call, told, windows, most, long_masks)
        return told
    except UnsupportedModel:
        stated = [*(Sight(window=n) for n in windows), *(Sight(chunk=n) for n in windows)]
        for sight in stated if told.window is None else []:
            with suppress(UnsupportedModel):
                _check_mask(call, sight, windows, most, long_masks)
                return sight
        raise


def _check_mask(call: Call, sight: Sight, windows: Sequence[int], most: int, long_masks: LongMasks) -> None:
    tokens, mask = call.query.shape[2], call.mask
    assert mask is not None
    _check_rows(call, sight, mask, range(tokens))
    stated = {p for n in windows for p in (n - 1, n, n + 1, 2 * n - 1, 2 * n, 3 * n + 1)}
    try:
        row = mask.row  # type: ignore[attr-defined]
        for position in sorted(p for p in stated | set(NOT_STATED) if tokens <= p < most):
            _check_rows(call, sight, row(position), [position])
    except (AttributeError, IndexError):  # the model changed the mask, or the mask's rule looks at tokens
        long = [n for n in windows if tokens <= n < most]
        if long:
            _check_long_mask(call, sight, long, most, long_masks)


def _check_long_mask(call: Call, sight: Sight, windows: Sequence[int], most: int, long_masks: LongMasks) -> None:
    if max(windows) > LONGEST_MASK:
        raise UnsupportedModel(
            f"its masks depend on more than positions, and with a window of {max(windows)} tokens they cannot be "
            f"checked; {LONGEST_MASK} is the longest that can"
        )
    tokens = min(2 * max(windows) + 2, most)
    mask = long_masks(tokens, [call.layer])[call.layer]
    if mask is None:
        raise UnsupportedModel(f"layer {call.layer} builds no causal mask")
    rows = sorted({p for n in windows for p in (n - 1, n, n + 1, 2 * n, 2 * n + 1) if p < tokens})
    _check_rows(call, sight, mask[..., rows, :], rows)


def _check_rows(call: Call, sight: Sight, mask: Tensor, positions: Sequence[int]) -> None:
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
        raise UnsupportedModel(f"layer {call.layer} adds a bias to its scores, and the engine computes none")
    wrong = (visible != expected).flatten(0, -3).any(0).nonzero()
    if len(wrong):
        row, key = wrong[0].tolist()
        sees = "does not see" if bool(expected[row, key]) else "sees"
        raise UnsupportedModel(
            f"in layer {call.layer} the token at position {positions[row]} {sees} the one at {key}, but its attention "
            f"is told of {sight}; the engine serves layers that see every earlier token, or a sliding window or chunks "
            "of a length that the configuration states, not other masks"
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
