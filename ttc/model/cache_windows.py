"""Windows that transformers' cache applies and its attention does not: there it contradicts itself.

`generate` runs over a cache that is made by the configuration alone (`DynamicCache(config=...)`), in
which a layer with a window keeps the last tokens of it. Where the layer's attention applies no such
window, as in a Llama with a `sliding_window` left over in its config.json, a run without a cache sees
all tokens, and `generate` loses sight of the early ones, but only after the prompt, which is one run.
Neither is what the other gives, so such a model is refused, with the way to make them agree.

Comparing each layer's window in the cache with what its mask lets it see takes no pass, however long
the windows are: a layer that keeps at least the tokens that it sees gives the same with the cache and
without. Where windows are so short that the check at load is longer, the cache runs, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from ttc.errors import UnsupportedModel
from ttc.model.masks import Sight

SINGLE_TOKENS = 8
"""The last tokens of the check, which come one by one where the cache runs."""


def generates_cache(model: Any) -> Any | None:
    """An empty cache like the one that `model.generate` makes; None where it makes none by the
    configuration, and for a model that does not generate, as a reward model."""
    supports = getattr(model, "_supports_default_dynamic_cache", None)
    if not hasattr(model, "generate") or supports is None or not supports():
        return None
    return DynamicCache(config=model.config.get_text_config(decoder=True))


def check_windows(model: Any, sights: Iterable[tuple[int, Sight]], longest: int) -> None:
    """Raise UnsupportedModel where a layer's cache keeps less than the layer sees without one.

    sights: the numbers of layers, and what their tokens see. longest: the model's context, in tokens.
    """
    cache = generates_cache(model)
    for number, sight in sights if cache is not None else ():
        window = _window(cache, number)
        sees = min(sight.window or sight.chunk or inf, longest)
        if window is not None and (window < sees or (window == 1 and longest > 1)):
            raise UnsupportedModel(_reason(model, number, window, sight, longest))


def keeps_windows(cache: Any) -> list[int]:
    """The windows of a cache's layers."""
    found = (_window(cache, number) for number in range(len(cache.layers)))
    return [window for window in found if window is not None]


@torch.no_grad()
def last_logits(model: Any, cache: Any, ids: Tensor) -> Tensor:
    """The logits (batch, vocabulary) of the last token as `generate` computes them: a run over the
    first tokens, and one for each of the last `SINGLE_TOKENS`. cache: empty, as `generates_cache`
    gives it."""
    first = ids.shape[1] - SINGLE_TOKENS
    parts = [ids[:, :first], *ids[:, first:].split(1, 1)]
    counted = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    places = counted.split([part.shape[1] for part in parts], 1)
    for part, positions in zip(parts, places, strict=True):
        options = {"past_key_values": cache, "use_cache": True, "position_ids": positions}
        logits: Tensor = model(input_ids=part, logits_to_keep=1, **options).logits
    return logits[:, -1]


def _window(cache: Any, number: int) -> int | None:
    """The tokens that a layer of the cache keeps, the new one among them; None for all."""
    layers: Sequence[Any] = cache.layers
    layer = layers[number] if 0 <= number < len(layers) else None
    return layer.sliding_window if getattr(layer, "is_sliding", False) else None  # type: ignore[union-attr]


def _reason(model: Any, number: int, window: int, sight: Sight, longest: int) -> str:
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "layer_types", None) is not None:
        field, way = "layer_types", "correct layer_types in its config.json"
    else:
        by_window = getattr(config, "sliding_window", None) is not None
        field = "sliding_window" if by_window else "attention_chunk_size"
        way = (
            f"remove {field} from its config.json or set it to the model's context, {longest} (in "
            f"Python: model.config.{field} = {longest})"
        )
    if window == 1 and sight.window == 1:
        return (
            "transformers contradicts itself: its attention has a window of 1 token, and its cache "
            "keeps all tokens under such a window; set sliding_window in its config.json to the "
            f"window that is meant, or {way}"
        )
    return (
        f"transformers contradicts itself: in a run without a cache layer {number} has {sight}, and "
        f"the cache of generate keeps a window of {window} tokens by {field} in its configuration. If "
        f"no window is meant, {way}"
    )
