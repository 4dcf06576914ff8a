"""Branches that a server continues: a request each, and another one until the step is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from math import inf, nan
from queue import Empty, SimpleQueue

from ttc.backend import Batch
from ttc.branch import Branch
from ttc.errors import (
    BranchRefused,
    ContentRefused,
    InvalidInput,
    RemoteError,
    number_of,
    on_failure,
)
from ttc.passes.arguments import check_step
from ttc.remote.replies import SPARE_TOKENS, TOP_K, Reply, check_same_text
from ttc.remote.server import Server
from ttc.sampling import SAMPLED, Sampling, random_key
from ttc.scheduler.stops import Stops
from ttc.step import Grammar, Step
from ttc.text.thinking_marks import mark_text
from ttc.text.thoughts import Thoughts
from ttc.tree.branch import StepEnd, check_live

SEEDS = 2**31
"""Seeds are below it: servers differ in how large they may be."""
LOOK_S = 0.1
"""So long an answer is waited for before the caller may look up."""
ANY_LENGTH = 2**62
"""The limit of a branch whose tokens are counted by the server."""


@dataclass(eq=False)
class RunningStep:
    """A branch whose step is under way.

    start: `len(tokens)` at the step's start. left: how many tokens the server may still write.
    stop: the strings at which the server stops. grammar: what it is asked to keep to.
    future: the request that was sent last.
    """

    branch: Branch
    start: int
    left: int
    stops: Stops
    sampling: Sampling
    logprobs: int
    stop: tuple[str, ...]
    grammar: Grammar | None = None
    future: Future[Reply] | None = None

    def break_off(self) -> None:
        if len(self.branch.tokens) > self.start:
            self.branch.end_step("interrupted")


class RemoteBatch(Batch):
    """Branches that a server continues, at most `max_rows` at once (see `ttc.backend.Batch`).

    Where a step ends is decided here, by the rules of an `Engine`, token for token. The server is
    told the strings too: what it writes beyond the end is cut off, and where it ends too early (at
    blank lines before a step's first word) it is asked again. A request's seed is made of the
    branch's key and its length. The cost of a call does not grow with the requests under way.

    works: of all branches whose step is under way.
    waiting: those that no request was sent for; one that has left is passed over.
    arrived: requests that have an answer, which their thread puts in.
    """

    def __init__(self, server: Server, max_rows: int | None = None):
        self.server = server
        self.max_rows = inf if max_rows is None else max_rows
        self.works: dict[Branch, RunningStep] = {}
        self.waiting: deque[RunningStep] = deque()
        self.requests: dict[Future[Reply], RunningStep] = {}
        self.arrived: SimpleQueue[Future[Reply]] = SimpleQueue()
        self.refused: dict[
            Branch, InvalidInput | ContentRefused
        ] = {}  # to be said by the next step
        self.stops: dict[tuple[tuple[str, ...], tuple[str, ...], bool], Stops] = {}

    def add(
        self,
        branches: Sequence[Branch],
        step: Step,
        sampling: Sampling = SAMPLED,
        limits: Sequence[int] | None = None,
    ) -> None:
        check_live(branches)
        if busy := [branch for branch in branches if branch in self.works]:
            raise InvalidInput(f"{busy[0]!r} is decoding already; wait until its step has ended")
        model, can = self.server.limits, self.server.can
        step_tokens = check_step(model, branches, step, sampling, limits)
        can.check_sampling(sampling)
        if step.statistics and "top_logprobs" in can.lacks:
            raise InvalidInput(f"the server has no statistics: {can.lacks['top_logprobs']}")
        stops = self._stops(step)
        stop = (*stops.stop, *stops.end) if can.stops else ()
        logprobs = TOP_K if step.statistics else min(1, can.logprobs)
        for branch, limit in zip(branches, step_tokens, strict=True):
            length = len(branch.tokens)
            context_left = model.left(length)
            left = limit if context_left is None else min(limit, context_left)
            work = RunningStep(branch, length, left, stops, sampling, logprobs, stop, step.grammar)
            self.works[branch] = work
            self.waiting.append(work)
        self._ask()

    def step(self) -> list[Branch]:
        """Wait for answers, for `LOOK_S` at most, and return the branches whose step is over then.

        Raises BranchRefused where the server refuses what a branch holds: that one has left, the
        others stay.
        """
        ended: list[Branch] = []
        with on_failure(self.close):
            while self.requests and not ended and not self.refused:
                futures = self.answers()
                if not futures:
                    break
                for future in futures:
                    if (work := self.requests.pop(future, None)) is not None:
                        ended += self._take(work, future)
                self._ask()
        if self.refused and not ended:
            branch, refusal = self.refused.popitem()
            raise BranchRefused(str(refusal), branch) from refusal
        return ended

    @property
    def has_answers(self) -> bool:
        return bool(self.refused) or not self.arrived.empty()

    def answers(self) -> list[Future[Reply]]:
        """The requests that have an answer; the first one is waited for."""
        try:
            futures = [self.arrived.get(timeout=LOOK_S)]
        except Empty:
            return []
        with suppress(Empty):
            while True:
                futures.append(self.arrived.get_nowait())
        return futures

    def close(self) -> None:
        for work in self.works.values():
            work.break_off()
        for future in self.requests:
            future.cancel()
        self.works = {}
        self.waiting.clear()
        self.requests = {}
        self.refused = {}

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            self.refused.pop(branch, None)
            work = self.works.pop(branch, None)
            if work is not None and work.future is not None:
                work.future.cancel()
                self.requests.pop(work.future, None)
        self._ask()

    def __len__(self) -> int:
        return len(self.works) + len(self.refused)

    # ---------------------------------------------------------------- requests and replies

    def _stops(self, step: Step) -> Stops:
        """One for all steps that end alike, so that what it knows of tokens is found out once."""
        key = step.delimiters, tuple(step.end), step.stop_loops
        if key not in self.stops:
            stop, end, loops = key
            self.stops[key] = Stops(stop, end, self.server.limits, self.server.decode, loops)
        return self.stops[key]

    def _ask(self) -> None:
        can = self.server.can
        while self.waiting and len(self.requests) < self.max_rows:
            work = self.waiting.popleft()
            if self.works.get(work.branch) is not work:
                continue  # it has left
            if work.grammar is not None and (why := _goes_on(work.branch)):
                self._refuse(work, InvalidInput(why))
                continue
            tokens = work.branch.tokens
            future = self.server.complete(
                tokens,
                work.left,
                random_key(work.branch.key, len(tokens)) % SEEDS,
                work.sampling,
                stop=work.stop,
                logprobs=work.logprobs,
                **(self.server.penalty(work.sampling) if can.extras else {}),
                **({} if work.grammar is None else work.grammar.request_fields),
            )
            self.requests[future] = work
            work.future = future
            future.add_done_callback(self.arrived.put)

    def _take(self, work: RunningStep, future: Future[Reply]) -> list[Branch]:
        try:
            reason = self._append(work, future.result())
        except ContentRefused as refusal:
            self._refuse(work, refusal)
            return []
        if reason == "eos" and work.grammar is not None:
            self._check_kept(work, work.grammar)
        if reason is None:
            self.waiting.appendleft(work)
            return []
        del self.works[work.branch]
        work.branch.end_step(reason)
        return [work.branch]

    def _refuse(self, work: RunningStep, refusal: InvalidInput | ContentRefused) -> None:
        work.break_off()
        del self.works[work.branch]
        self.refused[work.branch] = refusal

    def _check_kept(self, work: RunningStep, grammar: Grammar) -> None:
        text = self.server.decode(work.branch.tokens[work.start :])
        if not grammar.reads(text):
            raise RemoteError(
                f"{self.server.client.endpoint.base_url} was asked for JSON by a schema "
                f"(response_format) and answered {text!r:.80}; use a server that keeps to it, as "
                "vLLM, or a ttc.Engine"
            )

    def _append(self, work: RunningStep, reply: Reply) -> StepEnd | None:
        branch = work.branch
        limit = work.left
        length = len(branch.tokens)
        tokens, text = self._read(work, reply)
        if len(tokens) > 2 * limit + SPARE_TOKENS:
            raise self._strange(f"a text of {number_of(len(tokens), 'token')}", limit)
        written = max(len(reply.tokens or []), reply.generated_tokens or 0) or len(tokens)
        branch.usage.generated_tokens += written
        self.server.count_prompt(branch.usage, reply)
        work.left -= max(written, 1)
        figures = figures_of(reply, len(tokens))
        for place, (token, of_token) in enumerate(zip(tokens, figures, strict=False), 1):
            branch.append(token, *of_token)
            is_last = place == len(tokens) and reply.finish == "stop"
            if is_last and self.server.is_end(token):
                branch.finish_reason = "eos"
                return "eos"
            if (reason := work.stops.check(branch, work.start, ANY_LENGTH)) is not None:
                return reason
        if reply.finish == "stop" and not any(string in text for string in work.stop):
            branch.finish_reason = "eos"
            self._append_eos(branch, figures[len(tokens) :])
            return "eos"
        if work.left <= 0:
            return "length"
        if len(branch.tokens) == length:
            raise self._strange(f"no token (finish_reason={reply.finish!r})", limit)
        return None

    def _strange(self, answer: str, limit: int) -> RemoteError:
        return RemoteError(
            f"{self.server.client.endpoint.base_url} answered with {answer} where {limit} were "
            "asked for; look into the server's log"
        )

    def _read(self, work: RunningStep, reply: Reply) -> tuple[list[int], str]:
        branch, server = work.branch, self.server
        text = self._with_thought(branch, reply) if reply.thought else reply.text
        if reply.tokens is not None:
            check_same_text(reply, server.tokenizer)
            return reply.tokens, server.decode(reply.tokens, special=True)
        if reply.finish == "length":
            text = text.rstrip("\ufffd")  # a character that the last token has cut
        elif reply.stopped_by in work.stop and not text.endswith(str(reply.stopped_by)):
            text += str(reply.stopped_by)
        return server.follow(branch.tokens, text) if text else [], text

    def _with_thought(self, branch: Branch, reply: Reply) -> str:
        """The text of a reply whose thought the server has kept apart, with the user's marks around
        the thought, else the tokenizer's. A thought without a text after it has not ended."""
        thoughts = branch.thoughts or Thoughts.of(self.server.tokenizer)
        if thoughts is None:
            raise RemoteError(
                "the server keeps the model's thoughts apart (reasoning_content), and the "
                "tokenizer here names no marks for them; give the tokenizer of the model that it "
                "serves, name the marks (thinking_marks), or start the server without a reasoning "
                "parser"
            )
        thinks = branch.thinks_at(len(branch.tokens), thoughts)
        begin = "" if thinks else next(map(mark_text, thoughts.marks.begin), "")
        end = mark_text(thoughts.marks.end[0]) if reply.text else ""
        return f"{begin}{reply.thought}{end}{reply.text}"

    def _append_eos(self, branch: Branch, figures: Sequence[tuple[float, ...]]) -> None:
        eos = self.server.tokenizer.eos_token_id
        special = getattr(self.server.tokenizer, "all_special_ids", ())
        if eos is None or (branch.generated and branch.tokens[-1] in special):
            return  # or it is one that only the server's files name
        branch.append(eos, *(figures[0] if figures else (nan, nan)))


def _goes_on(branch: Branch) -> str:
    """Why a server cannot begin an answer by a schema with this branch's next token, "" where it
    can."""
    if branch.thoughts is not None and branch.thinks(branch.thoughts):
        return (
            "the server keeps to a schema from its next token on, and a thought is open there; "
            "give thinking_tokens=N, or thinking=off"
        )
    if (branch.answer_text or "").strip():
        return (
            "a server begins a schema anew with each request, and this answer is begun already; "
            "use a search that writes an answer in one step, as best_of_n, or a ttc.Engine"
        )
    return ""


def figures_of(reply: Reply, count: int) -> list[tuple[float, ...]]:
    """What `Branch.append` keeps of each of a reply's `count` tokens, and of an end-of-sequence
    token after them.

    Where the server's tokens are not those that its text has here, each one gets the mean over all
    of them, so that the mean over a step is right.
    """
    rows = [(f.logprob, f.top1, nan, f.top_k_logprob, nan) for f in reply.figures]
    if len(rows) in (count, count + 1):
        return list(rows)
    if not rows:
        return [(nan, nan)] * count
    return [tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))] * count
