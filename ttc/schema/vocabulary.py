"""A tokenizer as llguidance reads it: the bytes of each token."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from ttc.errors import InvalidInput, MissingPart

_vocabularies: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
_lock = Lock()


def vocabulary(tokenizer: Any, size: int, eos_ids: Sequence[int]) -> Any:
    """llguidance's `LLTokenizer`, made once for a tokenizer: it takes about half a second.

    size: of the model's vocabulary. eos_ids: the tokens that end a sequence.
    Raises InvalidInput for a tokenizer whose tokens' bytes are not known, and MissingPart without
    llguidance.
    """
    try:
        from llguidance import hf
    except ImportError as error:
        raise MissingPart(
            f"schema= and grammar= need llguidance, which cannot be imported ({error}); install "
            "it: pip install 'ttc-tree[schema]'"
        ) from error
    fast = getattr(tokenizer, "tokenizer", tokenizer)  # of `SplitSpecialTokens`
    if not getattr(fast, "is_fast", False):
        raise InvalidInput(
            "schema= and grammar= need a fast tokenizer of transformers, whose tokens' bytes are "
            f"known, and {type(fast).__name__} is none; leave them out"
        )
    if not eos_ids:
        raise InvalidInput(
            "schema= and grammar= need an end-of-sequence token, with which an answer ends, and "
            "the model names none; set model.generation_config.eos_token_id"
        )
    key = size, tuple(sorted(eos_ids))
    with _lock:
        made = _vocabularies.setdefault(fast, {})
        if key not in made:
            try:
                made[key] = hf.from_tokenizer(fast, n_vocab=size, eos_token=list(key[1]))
            except Exception as error:  # its parser raises what it likes
                raise InvalidInput(
                    f"llguidance cannot read this tokenizer ({error}); leave schema= and grammar= "
                    "out"
                ) from error
        return made[key]
