"""Log-probabilities of an answer's tokens, as OpenAI's protocol has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isnan
from typing import Any, NamedTuple

from ttc.backend import Backend
from ttc.text.chat import decoded

AROUND = 4
"""Tokens before one that is decoded: its text may depend on them."""


LEAST = -9999.0
"""Stands for the log-probability of a token that cannot be, as in OpenAI's protocol: JSON has no
infinite numbers."""


class TokensSoFar(NamedTuple):
    """What a branch has written: its tokens after the prompt, and what is known of them.

    alternatives: by the token's number in the branch, whose prompt has so many tokens as `start`
    says.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float] = ()
    alternatives: Mapping[int, Sequence[tuple[int, float]]] = {}
    start: int = 0


class Likely(NamedTuple):
    """A token that was likely in a place. bytes: None where no vocabulary tells them."""

    text: str
    bytes: list[int] | None
    logprob: float

    @property
    def name(self) -> str:
        """As completions have it, where no two tokens have one name: its text, or its bytes where
        it is a part of a character."""
        if self.bytes is None or bytes(self.bytes) == self.text.encode():
            return self.text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.bytes)

    def shown(self) -> dict[str, Any]:
        return {"token": self.text, "logprob": self.logprob, "bytes": self.bytes}


class TokenLogprobs(NamedTuple):
    """A token of the answer, with the likeliest ones in its place. begin, end: of the answer's
    text, its characters."""

    token: Likely
    likeliest: list[Likely]
    begin: int
    end: int

    def shown(self) -> dict[str, Any]:
        """As chats have it."""
        return self.token.shown() | {"top_logprobs": [likely.shown() for likely in self.likeliest]}


@dataclass(eq=False)
class TokenTexts:
    """The tokens of one answer with their texts, of which so many were `sent` to the client.

    The texts of all tokens are the answer's: a character of several tokens stands with its last
    one. Left out are special tokens, which are no part of the text, and tokens that were given and
    not drawn, as the end that is put after a thought.
    """

    backend: Backend
    entries: list[TokenLogprobs] = field(default_factory=list)
    sent: int = 0
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    read: int = 0

    def read_on(self, written: TokensSoFar, ended: bool = False) -> None:
        """Take in what has been written since. ended: nothing will follow."""
        for place in range(len(self.tokens), len(written.tokens)):
            token = written.tokens[place]
            self.tokens.append(token)
            last = ended and place == len(written.tokens) - 1
            piece = self._piece(last)
            begin, self.text = len(self.text), self.text + piece
            special = not piece and decoded([token], self.backend.tokenizer, special=True) != ""
            whole = "\ufffd" in self.backend.decode([token])  # a part of a character
            if (special and not whole) or isnan(written.logprobs[place]):
                continue
            own = self._likely(token, written.logprobs[place], piece)
            others = written.alternatives.get(written.start + place, ())
            likeliest = [
                own if other == token else self._likely(other, logprob) for other, logprob in others
            ]
            self.entries.append(TokenLogprobs(own, likeliest, begin, len(self.text)))

    def up_to(self, end: int) -> list[TokenLogprobs]:
        """Those that were not sent and begin before this character of the text."""
        first = self.sent
        while self.sent < len(self.entries) and self.entries[self.sent].begin < end:
            self.sent += 1
        return self.entries[first : self.sent]

    def _piece(self, last: bool) -> str:
        """What the newest token adds to the text: nothing where a character has no end yet."""
        around = max(0, self.read - AROUND)
        before = self.backend.decode(self.tokens[around : self.read])
        text = self.backend.decode(self.tokens[around:])
        if text.endswith("\ufffd") and not last:
            return ""
        self.read = len(self.tokens)
        return text[len(before) :]

    def _likely(self, token: int, logprob: float, piece: str = "") -> Likely:
        alone = self.backend.decode([token])
        special = "" if piece or alone else decoded([token], self.backend.tokenizer, special=True)
        text = piece or self._behind(token) or alone or special
        logprob = max(logprob, LEAST)
        if "\ufffd" in alone:
            return Likely(text, token_bytes(self.backend.tokenizer, token), logprob)
        return Likely(text, list(text.encode()), logprob)

    def _behind(self, token: int) -> str:
        """Its text behind the tokens before the newest, which may begin with a blank."""
        before = self.tokens[max(0, len(self.tokens) - 1 - AROUND) : -1]
        head, text = self.backend.decode(before), self.backend.decode([*before, token])
        return text[len(head) :] if text.startswith(head) and not head.endswith("\ufffd") else ""


@cache
def byte_letters() -> dict[str, int]:
    """The bytes that the letters of a byte-level vocabulary stand for, as GPT-2 has it."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def token_bytes(tokenizer: Any, token: int) -> list[int] | None:
    """The bytes of a token that is no text by itself; None where the vocabulary does not tell."""
    convert = getattr(tokenizer, "convert_ids_to_tokens", None)
    piece = convert(token) if convert is not None else None
    if not isinstance(piece, str):
        return None
    if len(piece) == 6 and piece.startswith("<0x"):  # as SentencePiece writes a byte
        return [int(piece[3:5], 16)]
    letters = byte_letters()
    if not all(letter in letters for letter in piece):
        return None
    return [letters[letter] for letter in piece]


def of_chat(entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    return {"content": [token.shown() for token in entries], "refusal": None}


def of_completion(entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The token that was drawn is among the likeliest ones."""
    return {
        "tokens": [token.token.name for token in entries],
        "token_logprobs": [token.token.logprob for token in entries],
        "top_logprobs": [
            {likely.name: likely.logprob for likely in (*token.likeliest[::-1], token.token)}
            for token in entries
        ],
        "text_offset": [token.begin for token in entries],
    }
