"""A tokenizer of words, for texts that no model of this process reads or writes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

PIECE = re.compile(r"\s*\w+|\s*[^\w\s]+|\s+")
"""A word, or signs in a row, each with the blanks before it; blanks at the end."""

NUMBERS = 2**53 - 1
"""The largest token number, so that every reader of JSON holds them exactly."""


class WordTokenizer:
    """A token is a word or a run of signs, with the blanks before it; texts come back exactly.

    So there are about as many tokens as a language model's tokenizer makes, and hardly ever more.
    A token's number is a hash of its text, the same in every process.
    """

    eos_token_id: ClassVar[int] = 0
    bos_token_id: ClassVar[int | None] = None
    all_special_ids: ClassVar[tuple[int, ...]] = (0,)
    chat_template: ClassVar[str] = "{role}:\n{content}\n\n"

    def __init__(self) -> None:
        self._pieces: dict[int, str] = {}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [self._number(piece) for piece in PIECE.findall(text)]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(self._pieces[token] for token in tokens if token != self.eos_token_id)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], *, tokenize: bool = True, **_: Any
    ) -> Any:
        """The messages, each under its role, and the head of the assistant's next one.

        The tokens of an answer are those of its text alone, so that a chat goes on from them.
        """
        turns = [(f"{each['role']}:\n", each["content"], "\n\n") for each in messages]
        parts = [*chain.from_iterable(turns), "assistant:\n"]
        return [t for part in parts for t in self.encode(part)] if tokenize else "".join(parts)

    def _number(self, piece: str) -> int:
        digest = hashlib.blake2b(piece.encode(), digest_size=8).digest()
        number = 1 + int.from_bytes(digest, "little") % NUMBERS
        self._pieces[number] = piece
        return number
