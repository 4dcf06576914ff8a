"""What a grammar allows, by another way of computing it."""

from __future__ import annotations

from typing import Any

import numpy as np
import regex

from ttc.branch import Branch

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def token_bytes(tokenizer: Any) -> list[bytes | None]:
    """The bytes of each token of a byte-level tokenizer; None for special ones."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    numbers = {letter: number for number, letter in bytes_to_unicode().items()}
    special = set(tokenizer.all_special_ids)
    return [
        None if token in special else bytes(map(numbers.__getitem__, spelling))
        for token, spelling in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    ]


def allowed_by(pattern: str, written: bytes, tokens: list[bytes | None], eos: int) -> set[int]:
    """The tokens after which a text may still become one that fits a pattern, by trying each."""
    whole = regex.compile(pattern.encode(), regex.DOTALL)
    fits = {
        token
        for token, more in enumerate(tokens)
        if more and whole.fullmatch(written + more, partial=True)
    }
    return fits | ({eos} if whole.fullmatch(written) else set())


def bits(words: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def filled(grammar: Any, branch: Branch, vocab: int) -> set[int]:
    words = np.zeros(-(-vocab // 32), np.uint32)
    grammar.fill(branch, words)
    return bits(words)
