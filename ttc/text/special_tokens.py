"""Special tokens that a user types, read as plain text (`split_special_tokens`).

A tokenizer reads "<|im_end|>" in a question as the token that ends a turn, as transformers and vLLM
do. transformers' `split_special_tokens=True` reads all of a text as plain text, the chat template's
own marks too. Here it holds for what users and tools say alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from ttc.errors import InvalidInput

FIRST, LAST = 0x100000, 0x10FFFD
"""Unicode's last plane, which is for private use: its characters stand in for others here."""
TYPED = ("user", "tool")
"""The roles whose messages are read as plain text."""


class SplitSpecialTokens:
    """A fast tokenizer as it is, but for special tokens in what users and tools say.

    In these texts the first character of each special token is replaced before the chat template
    sees them, and put back when the whole is cut into tokens. There the template's own special
    tokens have other names, which no text can hold, so that a copy of the tokenizer that reads
    special tokens as plain text finds these alone.
    """

    def __init__(self, tokenizer: Any):
        if not getattr(tokenizer, "is_fast", False):
            raise InvalidInput(
                f"split_special_tokens=True needs a fast tokenizer of transformers, and "
                f"{type(tokenizer).__name__} is none; leave it out"
            )
        from tokenizers import AddedToken

        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        special = sorted((t for t in added.items() if t[1].special and t[1].content), key=_length)
        self._numbers: dict[int, int] = {}
        self._plain = deepcopy(tokenizer)
        self._plain.split_special_tokens = True
        firsts = sorted({token.content[0] for _, token in special})
        names = {}
        for place, (number, token) in enumerate(special, FIRST + len(firsts)):
            names[token.content] = chr(place)
            blanks = {"lstrip": token.lstrip, "rstrip": token.rstrip}
            self._plain.add_tokens([AddedToken(chr(place), normalized=False, **blanks)])
            self._numbers[self._plain.convert_tokens_to_ids(chr(place))] = number
        self._names = names
        self._stand_ins = {first: chr(FIRST + place) for place, first in enumerate(firsts)}
        self._back = {ord(new): first for first, new in self._stand_ins.items()}
        self._special = "|".join(map(re.escape, names))

    def __getattr__(self, name: str) -> Any:
        if name == "tokenizer":  # not set yet, as in a copy
            raise AttributeError(name)
        return getattr(self.tokenizer, name)

    def __len__(self) -> int:
        return len(self.tokenizer)

    def guarded(self, text: str) -> str:
        """A text in which no special token is left. Raises InvalidInput where it holds a character
        that stands for another here."""
        if odd := [char for char in text if FIRST <= ord(char) <= LAST]:
            raise InvalidInput(
                f"a text holds the private character U+{ord(odd[0]):X}, which "
                "split_special_tokens=True uses itself; take it out"
            )
        if not self._special:
            return text
        chars = list(text)
        for match in re.finditer(f"(?={self._special})", text):
            chars[match.start()] = self._stand_ins[text[match.start()]]
        return "".join(chars)

    def readable(self, text: str) -> str:
        """What was guarded, as it was typed."""
        return text.translate(self._back)

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: bool = True, **options: Any
    ) -> Any:
        messages = list(map(self._message, conversation))
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if self._special:
            text = re.sub(self._special, lambda match: self._names[match.group()], text)
        tokens = self._plain.encode(self.readable(text), add_special_tokens=add_special_tokens)
        return [self._numbers.get(token, token) for token in tokens]

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def _message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message.get("role") not in TYPED:
            return message
        content = message["content"]
        if isinstance(content, str):
            return {**message, "content": self.guarded(content)}
        parts = [
            {**part, "text": self.guarded(part["text"])} if "text" in part else part
            for part in content
        ]
        return {**message, "content": parts}


def _length(item: tuple[int, Any]) -> tuple[int, int]:
    """Where two begin alike, the longer one is found."""
    return -len(item[1].content), item[0]
