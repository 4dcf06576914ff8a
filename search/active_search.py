"""One problem and its search under way: its requests, its budget and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from search.base import Case, Request, SearchSteps, StepParts, check_request
from search.budget import Budget, Spending
from search.config import SearchConfig
from search.recorded_tree import RecordedTree, pruned
from search.selection import answer_of, best_first, by_path, with_answer
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import BudgetExceeded, InvalidInput
from ttc.origin import at, error_text, origin_of_generator
from ttc.parts import handler
from ttc.protocols import Append, Expand, Handoff, Rate, Release, Vary
from ttc.results import BranchRecord, Did, Problem, Progress, Result, Stopped
from ttc.sampling import Sampling
from ttc.step import Step, Thinking
from ttc.text.prompt import PromptTemplate
from ttc.text.thinking_marks import settled
from ttc.tree.branch import check_branches
from ttc.usage import Usage

USES = {Append: "appended to", Handoff: "handed on", Rate: "rated", Expand: "expanded"}
"""What a search has done with the branches of a request, in the words of a message."""


class Chat(NamedTuple):
    """The conversation of a branch.

    template: the words around its question. turns: what follows that, the model's answers and the
        user's words in turn.
    start: `len(tokens)` where the model's last answer begins.
    """

    template: PromptTemplate
    question: str
    turns: tuple[str, ...]
    start: int


@dataclass(eq=False)
class ActiveSearch:
    """One problem and its search under way. A driver answers `request` until `done`, and then asks
    for the `result`.

    contained: whether an error of its search is this problem's failure, and not raised.
    question: as verifiers are given it.
    live: the branches that hold keys and values. tree, chats: the record and the conversation of
        each branch that ever was.
    candidates: what the search returned; None where its budget was spent before it had anything.
    unpaid: rated branches that were to be continued and for which the budget paid no child; they
        stay candidates, though their search lets go of them. With last words, all other candidates.

    request: what the search has asked for last. answered: how many requests were answered.
    waiting: of an `Expand`, the parents whose children are still to be made. children, growing:
        those so far, and those whose step is under way, with what is left of it where it has parts.
    shortened: those whose step the budget cut short.
    tool_runs: the calls of tools, by what is called; equal ones are made once.
    sent_tokens: the generated tokens that `writing` has given.

    begun: whether the search has been asked for its first request. over: whether it was broken off,
        so that no answer reaches it any more.
    error, stopped: why it has failed; what has ended it early.
    budget_raised: whether BudgetExceeded was raised in the search, which happens once.
    closing: the branch that the reserve is spent on.
    """

    problem: Problem
    index: int
    root: Branch
    config: SearchConfig
    tokenizer: Any
    contained: bool = False
    question: str = field(init=False)
    case: Case = field(init=False)
    steps: SearchSteps = field(init=False)
    live: dict[Branch, None] = field(default_factory=dict)
    tree: RecordedTree = field(default_factory=RecordedTree)
    chats: dict[Branch, Chat] = field(default_factory=dict)
    candidates: list[Branch] | None = None
    unpaid: list[Branch] = field(default_factory=list)
    request: Request | None = None
    waiting: list[Branch] = field(default_factory=list)
    children: list[Branch] = field(default_factory=list)
    growing: dict[Branch, StepParts | None] = field(default_factory=dict)
    shortened: list[Branch] = field(default_factory=list)
    spending: Spending = field(init=False)
    tool_runs: dict[str, Any] = field(default_factory=dict)
    answered: int = 0
    sent_tokens: int = 0
    begun: bool = False
    over: bool = False
    error: str | None = None
    stopped: Stopped | None = None
    budget_raised: bool = False
    closing: Branch | None = None

    def __post_init__(self) -> None:
        self.question = self.config.template.question_text(self.problem.question)
        self.spending = Spending(self.budget, {self.root.model: self.root.usage})
        self.case = self.config.case(self.problem)
        self.steps = steps_of(self.config, self.root, self.case)
        self.record(self.root, None)
        chat = Chat(self.config.template, self.problem.question, (), len(self.root.tokens))
        self.begin_turn(self.root, chat, self.tokenizer)

    @property
    def usage(self) -> Usage:
        return self.spending.usage

    @property
    def done(self) -> bool:
        return self.begun and self.request is None

    @property
    def budget(self) -> Budget:
        return self.config.options.budget

    # ------------------------------------------------------------ requests

    def begin(self) -> None:
        self.begun = True
        self.advance(None)

    def advance(self, answer: Any) -> None:
        self.answered += answer is not None
        self._take(lambda: self.steps.send(answer))

    def answer(self, did: Did, branches: Sequence[Branch]) -> tuple[int, Progress]:
        """Answer a request with these branches, and say what was done."""
        progress = self.progress(did, branches)
        self.advance(branches)
        return self.index, progress

    def _take(self, go_on: Callable[[], Request]) -> None:
        """Let the search go on to its next request, or to its end."""
        try:
            self._go_on(go_on)
        except (Exception, SystemExit) as error:
            if not self.contained:
                raise
            self.fail(error)

    def _go_on(self, go_on: Callable[[], Request]) -> None:
        try:
            request = go_on()
        except StopIteration as stop:
            self.request = None
            with self._placed():
                check_branches(stop.value, "what the search returned")
            self.candidates = list(stop.value)
            if self.budget_raised:
                self.candidates = [b for b in self.candidates if b.generated] or None
        except BudgetExceeded:  # raised in the search by `run_out`, and not caught there
            if not self.budget_raised:
                raise
            self.request = None
        else:
            with self._placed():
                self._check(request)
            self.request = request
            if isinstance(request, Expand):
                self._begin(request)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Errors of what the search asks for or returns name its line."""
        try:
            yield
        except InvalidInput as error:
            raise InvalidInput(f"{error}{at(origin_of_generator(self.steps))}") from error

    def _check(self, request: Request) -> None:
        """Raise InvalidInput for what a search may not ask for."""
        check_request(request)
        if isinstance(request, Vary | Release):
            return
        for branch in request.branches:
            if branch not in self.live:
                used = USES[type(request)]
                raise InvalidInput(
                    f"the search {used} {branch!r} after it had released it; release it later"
                )
            if isinstance(request, Expand) and branch.finished:
                raise InvalidInput(
                    f"the search expanded {branch!r}, which is finished; leave finished branches "
                    "out, or Append to them"
                )

    def _begin(self, request: Expand) -> None:
        self.waiting, self.children = request.parents(), []
        if not self.waiting:
            return
        if (why := self.spending.spent_calls) is not None:
            self.run_out(why)
        else:
            self.spending.expansions += 1

    # ------------------------------------------------------------ budget

    def affordable(self, engine: Backend, step: int) -> tuple[int, int]:
        """How many of the waiting children the budget pays for now, their rating included, and the
        tokens of each step. step: the most that it may write."""
        rater, question = self.config.rater, self.question

        def price(count: int) -> int:
            if self.closing is not None:
                return 0
            return rater.children_price(self.waiting[0], question, engine, step, count)

        return self.spending.affordable(len(self.waiting), step, price, len(self.children))

    @property
    def step_tokens(self) -> int:
        """The most tokens that the step of a waiting child may write."""
        assert isinstance(self.request, Expand)
        step, thoughts = self.request.step, self.config.thoughts
        if step.thinking is None or thoughts is None:
            return step.max_tokens
        from search.thinking import most_tokens

        calls = self.config.tools is not None
        parents = dict.fromkeys(self.waiting)
        return max(most_tokens(parent, step, thoughts, calls) for parent in parents)

    @property
    def overdue(self) -> Stopped | None:
        """Why the search has to end at once: it was cancelled, or its time is up."""
        options = self.config.options
        if options.cancel is not None and options.cancel.is_set():
            return "cancelled"
        limit_s = options.budget.max_wall_s
        return "max_wall_s" if limit_s is not None and self.spending.wall_s >= limit_s else None

    # ------------------------------------------------------------ ends

    def cut_short(self) -> None:
        """The budget paid for a part of an `Expand`: the search goes on with fewer children."""
        self.stopped = self.spending.scarcest
        continued = {child.parent for child in self.children}
        left = [parent for parent in dict.fromkeys(self.waiting) if parent not in continued]
        self.unpaid += [parent for parent in left if parent.score is not None and parent.generated]
        self.advance(self.children)

    def run_out(self, why: Stopped) -> None:
        """The budget is spent: tell the search once, which may return what it has."""
        self.stopped = why
        if self.budget_raised:
            self.steps.close()
            self.request = None
            return
        self.budget_raised = True
        for branch in self.live:  # an unrated one counts as the nearest rated one above it
            above: Branch | None = branch
            while above is not None and above.score is None:
                above = above.parent
            if above is not None:
                branch.score = above.score
        limits = ", ".join(f"{name}={value}" for name, value in self.budget.limits.items())
        message = f"the budget of this problem is spent: {limits}"
        if why == "cancelled":
            message = "this problem was cancelled"
        self._take(lambda: self.steps.throw(BudgetExceeded(message)))

    def break_off(self, why: Stopped) -> list[Branch]:
        """End the search between two tokens, with what it returns now, else with its live branches
        as they are.

        A branch that was decoding keeps what it has; its last step is "interrupted". Returns the
        branches that had written nothing of their own yet, which are let go of.
        """
        growing, self.growing, self.waiting = self.growing, {}, []
        for child in growing:
            if child.parent is not None and len(child.tokens) > len(child.parent.tokens):
                if child.step_ends[-1:] != [len(child.tokens)]:  # else it waited for others
                    child.end_step("interrupted")
                self._note_step(child)
        bare = [
            branch
            for branch in self.live
            if branch.parent in self.live and len(branch.tokens) == len(branch.parent.tokens)
        ]
        retired = self.retire(bare)
        if self.closing is not None:
            self.candidates = [child for child in growing if child in self.live] or self.candidates
        if self.begun:
            self.run_out(why)
        self.stopped = why
        self.end()
        return retired

    def end(self) -> None:
        self.begun = self.over = True
        self.request = None
        self.steps.close()

    def refuse(self, error: InvalidInput) -> None:
        """Raise an error in the search, which may go on without its request; else it has failed."""
        try:
            self._take(lambda: self.steps.throw(error))
        except InvalidInput as same:
            if same is not error:
                raise
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self.steps.close()
        self.request = None
        if self.closing is None:  # else the answer so far stands
            self.error = error_text(error)

    def close(self) -> None:
        """Spend the reserve on the best branch, where a budget ended the search before it was
        finished."""
        if not self.stopped and any(b.step_reasons[-1:] == ["length"] for b in self.shortened):
            self.stopped = self.spending.scarcest
        ended = self.stopped in (None, "max_wall_s", "cancelled") or self.error is not None
        if ended or not self.budget.reserve or self.closing is not None:
            return
        candidates, search = self.choices(), self.config.search
        best = search.choose(candidates, self.case.extract)[0] or self.root
        if best.finished or best not in self.live:
            return
        self.closing, self.unpaid = best, [branch for branch in candidates if branch is not best]
        self.candidates = [] if best is self.root else [best]  # until there is more
        self.spending.reserve_opened = True
        room = min(self.spending.tokens_left.values(), default=self.budget.reserve)
        if room > 0:
            at_once = None if self.case.thinking is None else Thinking(0)
            step = Step(room, end=self.case.end, thinking=at_once)
            self.steps = _last_words(best, self.budget.final_text, step, search.sampling)
            self.advance(None)

    def result(self) -> Result:
        candidates = self.choices()
        self.tree.end(dict.fromkeys([*self.live, *candidates]), candidates)
        best, answer = self.config.search.choose(candidates, self.case.extract)
        order = best_first(candidates, self.case.extract)
        if self.closing is not None and self.candidates:
            (best,) = self.candidates
            answer = answer_of(best, self.case.extract)
            order = [best, *(branch for branch in order if branch is not best)]
        records = {branch: BranchRecord.of(branch) for branch in order}
        by_model = {model: replace(meter) for model, meter in self.spending.meters.items()}
        first_turn = {branch: not chat.turns for branch, chat in self.chats.items()}
        own_marks = self.config.options.thinking_marks is None
        return Result(
            self.problem,
            None if best is None else records[best],
            list(records.values()),
            answer,
            replace(self.usage, wall_s=self.spending.wall_s),
            self.tree.copies(self.tree.nodes),
            self.config.options.seed,
            self.error,
            self.stopped,
            by_model if len(by_model) > 1 else {},
            self.config.template.text(self.problem.question, self.tokenizer),
            pruned(first_turn, order, self.case.extract, own_marks),
        )

    def choices(self) -> list[Branch]:
        """The candidates in the order of their paths: what the search returned, and what a budget
        left unpaid. Of a search that was cut short, the live branches that nothing continues. Where
        none has an answer, the best finished branch that it has rated and let go of, too."""
        extract = self.case.extract
        if self.candidates is not None:
            chosen = list(dict.fromkeys([*self.candidates, *self.unpaid]))
        else:
            written = [b for b in self.live if b is not self.root and b.generated]
            parents = {branch.parent for branch in self.live}
            chosen = [branch for branch in written if branch.finished or branch not in parents]
        if not with_answer(chosen, extract):
            ended = [b for b in self.chats if b.finished and b.score is not None]
            chosen += best_first(with_answer(by_path(ended), extract), extract)[:1]
        return by_path(chosen)

    # ------------------------------------------------------------ branches

    def record(self, branch: Branch, parent: Branch | None) -> Branch:
        """A new branch, live from now on."""
        self.live[branch] = None
        self.tree.add(branch, parent)
        if parent is not None:
            self.chats[branch] = self.chats[parent]
        return branch

    def begin_turn(self, branch: Branch, chat: Chat, tokenizer: Any) -> None:
        """The prompt of a branch is there: the model's answer follows."""
        self.chats[branch] = chat
        branch.about = self.problem.metadata
        branch.thoughts = thoughts = self.config.thoughts
        if thoughts is not None:
            end = chat.template.end_of_prompt(chat.question, tokenizer, chat.turns)
            branch.begin_turn(chat.start, thoughts.begun(branch.tokens[: chat.start], end))

    def retire(self, branches: Iterable[Branch]) -> list[Branch]:
        """Those of the branches that were live, no longer so."""
        retired = [branch for branch in dict.fromkeys(branches) if branch in self.live]
        for branch in retired:
            del self.live[branch]
            self.tree.let_go(branch)
        return retired

    def end_steps(self) -> list[Branch]:
        """The steps under way are over. Returns their children."""
        growing, self.growing = self.growing, {}
        for child, parts in growing.items():
            if parts is None and self.config.thoughts is not None and child.parent is not None:
                from search.thinking import count_thinking

                count_thinking(child, len(child.parent.tokens), self.config.thoughts)
            if child.step_reasons[-1] == "looped":
                child.finish_reason = "looped"
            self._note_step(child)
        del self.waiting[: len(growing)]
        self.children += growing
        return list(growing)

    def _note_step(self, child: Branch) -> None:
        child.leave_out(self.config.stops)
        self.tree.wrote(child, child.steps[-1])

    def writing(self) -> Progress | None:
        """What the steps under way have written so far, None where it has given that."""
        if self.usage.generated_tokens == self.sent_tokens:
            return None
        self.sent_tokens = self.usage.generated_tokens
        for child in self.growing:
            above = child.parent
            if above is not None and len(child.tokens) > len(above.tokens):
                start = above.step_ends[-1] if above.step_ends else child.prompt_length
                child.leave_out(self.config.stops)
                self.tree.wrote(child, settled(child.text_since(start), self.config.stops))
        return self.progress("wrote", list(self.growing))

    def progress(
        self, did: Did, branches: Sequence[Branch] = (), result: Result | None = None
    ) -> Progress:
        nodes = self.tree.copies(branches)
        return Progress(self.problem, self.answered, did, nodes, replace(self.usage), result)


def _last_words(branch: Branch, text: str, step: Step, sampling: Sampling) -> SearchSteps:
    """Ask for the answer, if `text` does, and write the branch to its end."""
    last = branch
    if text:
        (last,) = yield Append([branch], text, ends_thinking=True)
    (last,) = yield Expand([last], 1, step, sampling)
    last.score = branch.score  # it was rated before its last words
    return [last]


def steps_of(config: SearchConfig, root: Branch, case: Case) -> SearchSteps:
    search, tools = config.search, config.tools
    if tools is not None and tools.opening:
        steps: SearchSteps = handler("tool_use", "opening")(search, root, case, tools)
    else:
        steps = search.run(root, case)
    if not hasattr(steps, "send"):
        raise InvalidInput(
            f"{type(search).__name__}.run gave a {type(steps).__name__}, and must be a generator; "
            "yield requests, as Expand([root], 4, Step(64)), and return the candidates"
        )
    return steps
