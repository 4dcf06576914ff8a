"""Replies to /v1/responses, whole and as events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from experiments.server.logprobs import TokenLogprobs, TokensSoFar
from experiments.server.refusal import Refusal
from experiments.server.replies import CONTENT, REASONING, Choice, Event, ServerReply
from experiments.server.responses_request import ResponsesBody
from ttc.results import Progress, Result
from ttc.tool_calls import ToolCall

KINDS = {REASONING: "reasoning_text", CONTENT: "output_text"}
"""What the text of a thought and of an answer is called."""


@dataclass(eq=False)
class OutputItem:
    """A thought or a message, which is one text.

    name: the field of a chat's message that holds its text. number: its place in the
    output. logprobs: of its tokens.
    """

    name: str
    number: int
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def key(self) -> str:
        return f"{'rs' if self.name == REASONING else 'msg'}_{self.id}"

    def part(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": KINDS[self.name], "text": text}
        if self.name == CONTENT:
            part |= {"annotations": [], "logprobs": shown(self.logprobs)}
        return part

    def shown(self, status: str) -> dict[str, Any]:
        parts = [] if status == "in_progress" else [self.part(self.text)]
        item: dict[str, Any] = {"id": self.key, "status": status, "content": parts}
        if self.name == REASONING:
            return item | {"type": "reasoning", "summary": []}
        return item | {"type": "message", "role": "assistant"}


@dataclass(frozen=True)
class ResponsesReply(ServerReply):
    """How one request is answered. Its events are numbered from 0.

    received: the request. items, calls: the output so far; the last of the items may go on.
    numbers: one for each event that was sent.
    """

    received: ResponsesBody = field(kw_only=True)
    items: list[OutputItem] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    # ------------------------------------------------------------ the whole

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        (result,) = results
        (choice,) = self.choices(result)
        for name, text in self.parts(choice).items():
            if text:
                self.items.append(OutputItem(name, len(self.items), text))
        self._add_last_logprobs(choice)
        self.calls.extend(map(self._function_call, choice.calls))
        return self._response(choice, result)

    def _add_last_logprobs(self, choice: Choice) -> None:
        """The log-probabilities that were not sent yet stand with the last words."""
        if self.items:
            self.items[-1].logprobs += self._last_logprobs(0, choice)

    def _response(
        self, choice: Choice | None = None, result: Result | None = None
    ) -> dict[str, Any]:
        """The response as it is; without a choice it has only begun."""
        body = self.received
        sent = body.model_dump(exclude_none=True)
        cut = choice is not None and choice.finish_reason == "length"
        status = "in_progress" if choice is None else "incomplete" if cut else "completed"
        ended = "incomplete" if cut else "completed"
        response: dict[str, Any] = {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": [item.shown(ended) for item in self.items] + self.calls,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": body.text.model_dump(exclude_none=True, by_alias=True),
            "tool_choice": sent["tool_choice"],
            "tools": sent["tools"],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        }
        if result is not None:
            response |= {"usage": self._usage(result), "search": self.account([result])}
        return response

    def _usage(self, result: Result) -> dict[str, Any]:
        usage = self.usage([result])
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
            "verifier_tokens": usage["verifier_tokens"],
        }

    def _function_call(self, call: ToolCall) -> dict[str, Any]:
        return {
            "id": f"fc_{uuid4().hex}",
            "type": "function_call",
            "status": "completed",
            "call_id": f"call_{uuid4().hex[:24]}",
            "name": call.name,
            "arguments": json.dumps(call.arguments, ensure_ascii=False),
        }

    # ------------------------------------------------------------ events

    def opening(self) -> list[Event]:
        return [
            self._event("created", response=self._response()),
            self._event("in_progress", response=self._response()),
        ]

    def more(self, index: int, field: str, text: str, written: TokensSoFar) -> list[Event]:
        events: list[Event] = []
        if not self.items or self.items[-1].name != field:
            events += self._item_ends()
            item = OutputItem(field, len(self.items))
            self.items.append(item)
            events.append(self._of_item(item, "output_item.added", item=item.shown("in_progress")))
            events.append(self._of_part(item, "content_part.added", part=item.part("")))
        item = self.items[-1]
        item.text += text
        logprobs: dict[str, Any] = {}
        if field == CONTENT:
            new = self.new_logprobs(index, written)
            item.logprobs += new
            logprobs = {"logprobs": shown(new)}
        return [*events, self._of_part(item, f"{KINDS[field]}.delta", delta=text, **logprobs)]

    def progressed(self, progress: Progress) -> list[Event]:
        return [self._event("in_progress", response=self._response()) | self.progress(progress)]

    def ended(self, index: int, choice: Choice, result: Result) -> list[Event]:
        self._add_last_logprobs(choice)
        events = self._item_ends("incomplete" if choice.finish_reason == "length" else "completed")
        for number, call in enumerate(map(self._function_call, choice.calls), len(self.items)):
            self.calls.append(call)
            begun = call | {"status": "in_progress", "arguments": ""}
            of: dict[str, Any] = {"item_id": call["id"], "output_index": number}
            arguments, name = call["arguments"], call["name"]
            events += [
                self._event("output_item.added", output_index=number, item=begun),
                self._event("function_call_arguments.delta", **of, delta=arguments),
                self._event("function_call_arguments.done", **of, arguments=arguments, name=name),
                self._event("output_item.done", output_index=number, item=call),
            ]
        response = self._response(choice, result)
        return [*events, self._event(response["status"], response=response)]

    def closing(self, result: Result) -> list[Event | str]:
        return []

    def failed(self, refusal: Refusal) -> list[Event]:
        error = refusal.body()["error"]
        code = error["code"] or error["type"]
        failure = {"status": "failed", "error": {"code": code, "message": error["message"]}}
        return [self._event("failed", response=self._response() | failure)]

    def _item_ends(self, status: str = "completed") -> list[Event]:
        """The end of the last item, if there is one."""
        if not self.items:
            return []
        item = self.items[-1]
        logprobs = {"logprobs": shown(item.logprobs)} if item.name == CONTENT else {}
        return [
            self._of_part(item, f"{KINDS[item.name]}.done", text=item.text, **logprobs),
            self._of_part(item, "content_part.done", part=item.part(item.text)),
            self._of_item(item, "output_item.done", item=item.shown(status)),
        ]

    def _of_item(self, item: OutputItem, name: str, /, **more: Any) -> Event:
        return self._event(name, output_index=item.number, **more)

    def _of_part(self, item: OutputItem, name: str, /, **more: Any) -> Event:
        return self._of_item(item, name, item_id=item.key, content_index=0, **more)

    def _event(self, name: str, /, **more: Any) -> Event:
        self.numbers.append(len(self.numbers))
        return {"type": f"response.{name}", "sequence_number": self.numbers[-1], **more}


def shown(logprobs: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    return [one.shown() for one in logprobs]
