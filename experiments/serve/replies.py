"""Answers in the form of OpenAI's protocol, whole and in pieces."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from experiments.serve.offer import PLAIN
from ttc import __version__
from ttc.protocols import Backend
from ttc.results import BranchRecord, Result
from ttc.text.thoughts import Parted, Thoughts

REASONING, CONTENT = "reasoning_content", "content"
FIELDS = {True: REASONING, False: CONTENT}
"""Where thoughts and answers stand in a message, as DeepSeek's and vLLM's servers have it."""


@dataclass(frozen=True)
class Choice:
    """One answer of a reply.

    text: all of it. thought, answer: its two parts, the answer None where the model still thinks.
    """

    text: str
    thought: str
    answer: str | None
    finish_reason: str
    token_ids: Sequence[int]

    @property
    def tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Reply:
    """How one request is answered.

    chat: whether it came to /v1/chat/completions. model: as the client called it. search: the search's name.
    stops: strings that end an answer and are left out. most: the most tokens of an answer, None for no limit.
    prompt_tokens: of all prompts together.
    thoughts: how thoughts are told from answers, None where all is answer. begun: whether the prompt has begun one.
    """

    engine: Backend
    chat: bool
    model: str
    search: str
    seed: int
    stops: Sequence[str]
    most: int | None
    prompt_tokens: int
    thoughts: Thoughts | None = None
    begun: bool = False
    id: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    # ------------------------------------------------------------ choices

    def choices(self, result: Result) -> list[Choice]:
        """The samples of the plain model in order, or the branch that a search chose."""
        if self.search == PLAIN:
            return [self._choice(branch) for branch in sorted(result.branches, key=lambda branch: branch.path)]
        return [Choice("", "", "", "length", ())] if result.best is None else [self._choice(result.best)]

    def _choice(self, branch: BranchRecord) -> Choice:
        tokens, ended = branch.generated, branch.finish_reason in ("eos", "end")
        thought, answer = branch.thought, branch.answer_text
        if self.most is not None and len(tokens) > self.most:
            tokens, ended = tokens[: self.most], False
            thought, answer = self._split(tokens)
        text = self.cut(self.engine.decode(tokens))
        if len(self.cut(thought)) < len(thought):
            thought, answer = self.cut(thought), None
        answer = None if answer is None else self.cut(answer)
        return Choice(text, thought, answer, "stop" if ended else "length", tokens)

    def _split(self, tokens: Sequence[int]) -> Parted:
        """The thought and the answer of what was written after a prompt."""
        if self.thoughts is None:
            return Parted("", self.engine.decode(tokens))
        return self.thoughts.split(tokens, self.begun)

    def cut(self, text: str) -> str:
        """A text up to its first stop string."""
        return text[: min((at for stop in self.stops if (at := text.find(stop)) >= 0), default=len(text))]

    def settled(self, tokens: Sequence[int]) -> dict[str, str]:
        """What is sure to stand in each part of the reply of a branch that goes on: no half character, no half stop
        string, no half mark of a thought."""
        if not self.chat or self.thoughts is None:
            return {self.field: self._settled(self.engine.decode(tokens).rstrip("\ufffd"))}
        pieces = self.thoughts.settled(tokens, self.begun)
        parts = self._by_field(pieces)
        if pieces:
            last = FIELDS[pieces[-1][0]]
            parts[last] = self._settled(parts[last])
        return parts

    def _settled(self, text: str) -> str:
        cut = self.cut(text)
        held = max(map(len, self.stops), default=1) - 1
        return cut if len(cut) < len(text) else text[: max(0, len(text) - held)]

    def said(self, choice: Choice) -> dict[str, str]:
        """The parts of a reply that has ended."""
        if not self.chat:
            return {self.field: choice.text}
        return {REASONING: choice.thought, CONTENT: choice.answer or ""}

    def streamed(self, tokens: Sequence[int]) -> dict[str, str]:
        """The parts of a reply of the plain model that was followed to its end: as `said`, but that what has been sent
        as the answer stays the answer."""
        if not self.chat or self.thoughts is None:
            return {self.field: self.cut(self.engine.decode(tokens))}
        parts = self._by_field(self.thoughts.pieces(tokens, self.begun))
        return {field: self.cut(text) for field, text in parts.items()}

    def _by_field(self, pieces: Sequence[tuple[bool, str]]) -> dict[str, str]:
        return {field: "".join(text for of, text in pieces if of is thought) for thought, field in FIELDS.items()}

    @property
    def field(self) -> str:
        """Where the text of a reply stands that has no thoughts."""
        return CONTENT if self.chat else "text"

    # ------------------------------------------------------------ objects

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The reply to a request that was not streamed."""
        choices = [choice for result in results for choice in self.choices(result)]
        shown = []
        for index, choice in enumerate(choices):
            said: dict[str, Any] = {"text": choice.text}
            if self.chat:
                message: dict[str, Any] = {"role": "assistant", "content": choice.answer, "refusal": None}
                if choice.thought:
                    message[REASONING] = choice.thought
                said = {"message": message}
            shown.append({"index": index, **said, "logprobs": None, "finish_reason": choice.finish_reason})
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, shown) | {"usage": self.usage(results), "search": self.account(results)}

    def piece(
        self, index: int, text: str, finish_reason: str | None = None, first: bool = False, field: str = CONTENT
    ) -> dict[str, Any]:
        """A part of a choice. first: it opens an assistant's message. field: of a message, what the text belongs to."""
        said: dict[str, Any] = {"text": text}
        if self.chat:
            role = {"role": "assistant"} if first else {}
            said = {"delta": role | ({field: text} if text or first else {})}
        choice = {"index": index, **said, "logprobs": None, "finish_reason": finish_reason}
        return self._object("chat.completion.chunk" if self.chat else "text_completion", [choice])

    def last_piece(self, results: Sequence[Result]) -> dict[str, Any]:
        """What a request is told that asked for the usage of a stream."""
        return self._object("chat.completion.chunk" if self.chat else "text_completion", []) | {
            "usage": self.usage(results)
        }

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"ttc-{__version__}",
            "choices": choices,
        }

    def usage(self, results: Sequence[Result]) -> dict[str, Any]:
        """What was used. The tokens of branches that are not the answer count as reasoning."""
        generated = sum(result.usage.generated_tokens for result in results)
        answers = sum(choice.tokens for result in results for choice in self.choices(result))
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
            "completion_tokens_details": {"reasoning_tokens": max(0, generated - answers)},
            "verifier_tokens": sum(result.usage.verifier_tokens for result in results),
        }

    def account(self, results: Sequence[Result]) -> dict[str, Any]:
        """How the answer was found."""
        first = results[0]
        return {
            "name": self.search,
            "seed": self.seed,
            "answer": first.answer,
            "score": None if first.best is None else first.best.score,
            "branches": sum(len(result.branches) for result in results),
            "nodes": sum(len(result.tree) for result in results),
            "stopped": first.stopped,
        }


def event(data: dict[str, Any] | str) -> str:
    """A server-sent event."""
    return f"data: {data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n\n"


def comment(text: str) -> str:
    """What keeps a connection alive; clients pass over it."""
    return f": {text}\n\n"
