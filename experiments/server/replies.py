"""Answers in the form of OpenAI's protocol, whole and in pieces."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any
from uuid import uuid4

from experiments.server.logprobs import (
    TokenLogprobs,
    TokensSoFar,
    TokenTexts,
    of_chat,
    of_completion,
)
from experiments.server.offer import PLAIN
from experiments.server.prepare import Prepared
from experiments.server.refusal import Refusal
from experiments.server.requests import Body, ChatBody
from ttc.backend import Backend
from ttc.results import BranchRecord, Progress, Result
from ttc.text.thinking_marks import Parted
from ttc.text.thoughts import Thoughts
from ttc.tool_calls import ToolCall

REASONING, CONTENT = "reasoning_content", "content"
DONE = "[DONE]"
"""The last event of a stream."""

FIELDS = {True: REASONING, False: CONTENT}
"""Where thoughts and answers stand in a message, as DeepSeek's and vLLM's servers have it."""


@dataclass(frozen=True)
class Choice:
    """One answer of a reply. thought, answer: the parts of its text, the answer None where the
    model still thinks. written: all that was generated. answer_tokens: how many tokens of the
    answer were generated."""

    text: str
    thought: str
    answer: str | None
    finish_reason: str
    written: TokensSoFar
    answer_tokens: int = 0
    calls: Sequence[ToolCall] = ()


Event = dict[str, Any]
"""What is sent of a stream at once."""


@dataclass(frozen=True)
class ServerReply:
    """How one request is answered: the whole of it, or one event after another.

    token_texts: of each choice, where log-probabilities are asked for.
    """

    engine: Backend
    request: Prepared
    id: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    token_texts: dict[int, TokenTexts] = field(default_factory=dict)

    @property
    def body(self) -> Body:
        return self.request.body

    @property
    def search(self) -> str:
        return self.request.search

    @property
    def chat(self) -> bool:
        return isinstance(self.body, ChatBody)

    @property
    def thoughts(self) -> Thoughts | None:
        """How thoughts are told from answers, None where all is answer."""
        return self.request.config.thoughts

    # ------------------------------------------------------------ choices

    def choices(self, result: Result) -> list[Choice]:
        """The samples of the plain model in order, or the branch that a search chose. A sample that
        was not begun before a limit, and what a search did not find, is an empty text."""
        if self.search == PLAIN:
            samples = {branch.path[-1]: branch for branch in result.branches}
            return [self._choice(samples.get(index)) for index in range(self.body.n)]
        return [self._choice(result.best, cut_off=result.stopped is not None)]

    def _choice(self, branch: BranchRecord | None, cut_off: bool = False) -> Choice:
        """cut_off: the search would have gone on, so that this is no answer with an end."""
        if branch is None:
            return Choice("", "", "", "length", TokensSoFar(()))
        tokens = branch.generated
        ended = branch.finish_reason in ("eos", "end") and not cut_off
        calls = [call for call in branch.tool_calls if call.answer is None]
        parts = Parted(branch.thought, branch.answer_text)
        limit = None if self.body.thinking_token_budget is not None else self.body.token_limit
        if limit is not None and (chat := self.request.config.tools) is not None and chat.opening:
            limit += next((i for i, x in enumerate(branch.logprobs) if not isnan(x)), len(tokens))
        if limit is not None and len(tokens) > limit and not branch.tool_calls:
            tokens, ended, calls = tokens[:limit], False, []
            parts = Parted("", self.engine.decode(tokens))
            if self.thoughts is not None:
                parts = self.thoughts.split(tokens, self.request.in_thought)
        thought = self.cut(parts.thought)
        in_thought = parts.answer is None or len(thought) < len(parts.thought)
        answer = None if in_thought else self.cut(parts.answer or "")
        text = self.cut(self.engine.decode(tokens))
        reason = "tool_calls" if calls else "stop" if ended else "length"
        written = TokensSoFar(tokens, branch.logprobs, branch.alternatives, branch.prompt_length)
        count = _answer_tokens(branch, tokens)
        return Choice(text, thought, answer, reason, written, count, calls)

    def cut(self, text: str) -> str:
        """A text up to its first stop string."""
        return text[: _first(self.request.config.end, text)]

    # ------------------------------------------------------------ parts of a message

    def parts(self, choice: Choice) -> dict[str, str]:
        """The parts of a reply that has ended."""
        if not self.chat:
            return {"text": choice.text}
        return {REASONING: choice.thought, CONTENT: choice.answer or ""}

    def streamed(self, tokens: Sequence[int]) -> dict[str, str]:
        """As `said`, of the plain model: what has been sent as the answer stays the answer."""
        if not self.chat or self.thoughts is None:
            return {self._field: self.cut(self.engine.decode(tokens))}
        parts = _by_field(self.thoughts.pieces(tokens, self.request.in_thought))
        return {field: self.cut(text) for field, text in parts.items()}

    def settled(self, tokens: Sequence[int]) -> dict[str, str]:
        """What is sure to stand in the reply of a branch that goes on: no half character, stop
        string or mark."""
        if not self.chat or self.thoughts is None:
            text = self.engine.decode(tokens).rstrip("\ufffd")
            return {self._field: self._without_half_stop(text)}
        pieces = self.thoughts.settled(tokens, self.request.in_thought)
        parts = _by_field(pieces)
        if pieces:
            last = FIELDS[pieces[-1][0]]
            parts[last] = self._without_half_stop(parts[last])
        return parts

    def _without_half_stop(self, text: str) -> str:
        """A text up to a stop string or a call, without what may begin one."""
        tools = self.request.config.tools
        stops = (*self.request.config.end, *(() if tools is None else tools.format.begins))
        longest = max(map(len, stops), default=1) - 1
        first = _first(stops, text)
        return text[:first] if first < len(text) else text[: max(0, len(text) - longest)]

    @property
    def follows(self) -> bool:
        """Whether the text of a branch is sent as it comes: where it is known which part of it may
        become a call."""
        tools = self.request.config.tools
        if tools is None:
            return True
        if not tools.format.begins or tools.format.in_thoughts:
            return False
        return all(tool.run is None for tool in tools.tools.tools)

    @property
    def _field(self) -> str:
        return CONTENT if self.chat else "text"

    # ------------------------------------------------------------ objects

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The reply to a request that was not streamed."""
        choices = [choice for result in results for choice in self.choices(result)]
        shown = [
            _numbered(index, self._content(index, choice), choice.finish_reason)
            for index, choice in enumerate(choices)
        ]
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, shown) | {
            "usage": self.usage(results),
            "search": self.account(results),
        }

    def _last_logprobs(self, index: int, choice: Choice) -> list[TokenLogprobs]:
        """Those of the tokens of a choice that were not sent yet."""
        if self.body.kept_logprobs is None:
            return []
        texts = self.token_texts.setdefault(index, TokenTexts(self.engine))
        texts.read_on(choice.written, ended=True)
        return texts.up_to(len(self.cut(self.engine.decode(choice.written.tokens))))

    def _shown(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if self.body.kept_logprobs is None:
            return None
        return of_chat(logprobs) if self.chat else of_completion(logprobs)

    def _content(self, index: int, choice: Choice) -> dict[str, Any]:
        logprobs = self._shown(self._last_logprobs(index, choice))
        if not self.chat:
            return {"text": choice.text, "logprobs": logprobs}
        message = dict[str, Any](role="assistant", content=choice.answer, refusal=None)
        if choice.thought:
            message[REASONING] = choice.thought
        if choice.calls:
            message["content"] = choice.answer or None
            message["tool_calls"] = list(map(self._called, choice.calls))
        return {"message": message, "logprobs": logprobs}

    def _called(self, call: ToolCall) -> dict[str, Any]:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        return {"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}

    # ------------------------------------------------------------ events

    def opening(self) -> list[Event]:
        """What a stream begins with."""
        return [self._piece(index, "", first=True) for index in range(self.body.n) if self.chat]

    def more(self, index: int, field: str, text: str, written: TokensSoFar) -> list[Event]:
        """Text of a choice. field: of a message, what the text belongs to. written: all tokens so
        far."""
        piece = self._piece(index, text, field=field)
        piece["choices"][0]["logprobs"] = self._shown(self.new_logprobs(index, written))
        return [piece]

    def new_logprobs(self, index: int, written: TokensSoFar) -> list[TokenLogprobs]:
        """Those of the tokens of a choice that are sure to stay and were not sent yet."""
        if self.body.kept_logprobs is None:
            return []
        texts = self.token_texts.setdefault(index, TokenTexts(self.engine))
        texts.read_on(written)
        text = self.engine.decode(written.tokens).rstrip("\ufffd")
        return texts.up_to(len(self._without_half_stop(text)))

    def progressed(self, progress: Progress) -> list[Event]:
        """A part without text that tells what the search did last, and what it has used."""
        return [self._piece(0, "") | self.progress(progress)]

    def progress(self, progress: Progress) -> dict[str, Any]:
        usage = progress.usage
        return {
            "progress": {
                "did": progress.did,
                "generated_tokens": usage.generated_tokens,
                "verifier_tokens": usage.verifier_tokens,
            }
        }

    def ended(self, index: int, choice: Choice, result: Result) -> list[Event]:
        """The end of a choice whose text has been sent."""
        events = []
        if choice.calls:
            calls = [{"index": i, **self._called(call)} for i, call in enumerate(choice.calls)]
            events.append(self._chunk([_numbered(index, {"delta": {"tool_calls": calls}}, None)]))
        last = self._piece(index, "", choice.finish_reason) | {"search": self.account([result])}
        last["choices"][0]["logprobs"] = self._shown(self._last_logprobs(index, choice))
        return [*events, last]

    def closing(self, result: Result) -> list[Event | str]:
        """The end of a stream: the usage, where it was asked for."""
        if not self.body.stream_options.include_usage:
            return [DONE]
        return [self._chunk([]) | {"usage": self.usage([result])}, DONE]

    def failed(self, refusal: Refusal) -> list[Event]:
        return [refusal.body()]

    def _piece(
        self,
        index: int,
        text: str,
        finish_reason: str | None = None,
        first: bool = False,
        field: str = CONTENT,
    ) -> Event:
        """A part of a choice. first: it opens an assistant's message."""
        content: dict[str, Any] = {"text": text}
        if self.chat:
            role = {"role": "assistant"} if first else {}
            content = {"delta": role | ({field: text} if text or first else {})}
        return self._chunk([_numbered(index, content, finish_reason)])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"usage": None} if self.body.stream_options.include_usage else {}
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._object(kind, choices) | usage

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.body.model,
            "choices": choices,
        }

    def usage(self, results: Sequence[Result]) -> dict[str, Any]:
        """What was used. Tokens of thoughts, and of branches that are not the answer, count as
        reasoning."""
        prompt = self.request.prompt_tokens
        generated = sum(result.usage.generated_tokens for result in results)
        answers = sum(choice.answer_tokens for result in results for choice in self.choices(result))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "completion_tokens_details": {"reasoning_tokens": max(0, generated - answers)},
            "verifier_tokens": sum(result.usage.verifier_tokens for result in results),
        }

    def account(self, results: Sequence[Result]) -> dict[str, Any]:
        """How the answer was found."""
        first = results[0]
        return {
            "name": self.search,
            "seed": self.request.config.options.seed,
            "answer": first.answer,
            "score": None if first.best is None else first.best.score,
            "branches": sum(len(result.branches) for result in results),
            "nodes": sum(len(result.tree) for result in results),
            "stopped": next((result.stopped for result in results if result.stopped), None),
        }


def _answer_tokens(branch: BranchRecord, tokens: Sequence[int]) -> int:
    """How many of the first tokens of a branch were generated, and belong to its answer. Given
    ones, as the end that is put after a thought, have no log-probability; where a backend knows
    none at all, all count as generated."""
    generated = sum(not isnan(value) for value in branch.logprobs[: len(tokens)])
    return max(0, (generated or len(tokens)) - branch.thinking_tokens)


def _first(strings: Sequence[str], text: str) -> int:
    """Where the first of these strings begins; the text's length where none is in it."""
    return min((at for string in strings if (at := text.find(string)) >= 0), default=len(text))


def _by_field(pieces: Sequence[tuple[bool, str]]) -> dict[str, str]:
    return {
        field: "".join(text for of, text in pieces if of is thought)
        for thought, field in FIELDS.items()
    }


def _numbered(index: int, content: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, **content, "finish_reason": finish_reason}


def event(data: Event | str) -> str:
    """A server-sent event; one that says of which type it is has that as its name, too."""
    if isinstance(data, str):
        return f"data: {data}\n\n"
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data, ensure_ascii=False)}\n\n"


def comment(text: str) -> str:
    """What keeps a connection alive; clients pass over it."""
    return f": {text}\n\n"
