"""Which layers have a window in the cache that transformers makes for a model.

The cache of `generate` is made by the configuration alone. Where a layer's attention applies no
such window, as in a Llama with a `sliding_window` left over in its config.json, a run without a
cache sees all tokens, and `generate` loses sight of the early ones. Such a model is refused, with
the way to make both agree. A layer's window in the cache is compared with what its mask lets it
see.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from transformers.cache_utils import DynamicCache

from ttc.errors import UnsupportedModel
from ttc.model.check.masks import Sight


def check_windows(model: Any, sights: Iterable[tuple[int, Sight]], context: int) -> None:
    """Raise UnsupportedModel where a layer's cache keeps less than the layer sees without one.

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
