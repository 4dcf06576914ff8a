"""Tokenizers small enough to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Letters:
    """One token per character, no chat template, no special tokens."""

    chat_template = None
    bos_token_id = eos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return "".join(map(chr, tokens))


def text(letters: str) -> list[int]:
    """The tokens of `Letters`."""
    return Letters().encode(letters)


EOS = 3


class Ascii(Letters):
    """One token per ASCII character, of which one ends a sequence."""

    eos_token_id: int | None = EOS  # type: ignore[assignment]
    all_special_ids = (EOS,)

    def __len__(self) -> int:
        return 128

    def decode(
        self, tokens: Sequence[int], *, skip_special_tokens: bool = False, **options: Any
    ) -> str:
        return "".join(chr(t) for t in tokens if not (skip_special_tokens and t == EOS))


class Chatting(Ascii):
    """A chat template that writes each role's first letter before its words."""

    chat_template = "made by apply_chat_template"  # type: ignore[assignment]

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        return "".join(f"{m['role'][0]}:{m['content']}\n" for m in messages) + "a:"


class Numbers:
    """A tokenizer of numbers; there is no end of sequence but token 0."""

    eos_token_id = 0
    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [1 + ord(c) % 20 for c in text]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, tokens))


WORDS = [
    "<eos>",
    "yes",
    "no",
    "Yes",
    "No",
    "is",
    "it",
    "right",
    "?",
    "a",
    "b",
    "c",
    "\n\n",
    "\nAnswer:",
]


class Words:
    """A tokenizer of whole words."""

    eos_token_id = 0
    chat_template: str | None = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        if text in WORDS:
            return [WORDS.index(text)]
        return [
            WORDS.index(w)
            for w in text.replace("\n\n", "").replace("\nAnswer:", " right").split()
            if w in WORDS
        ]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return " ".join(WORDS[t % len(WORDS)] for t in tokens)

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return " ".join(f"{m['content']} <eos>" for m in messages) + " a b"


def words(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split() if word in WORDS]


class KnownWords(Words):
    """Leaves out the words that it does not know."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return words(text)
