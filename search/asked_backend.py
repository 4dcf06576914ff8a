"""A backend whose texts, and a verifier whose scores, come from whoever drives the search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, Literal

from ttc.backend import Backend, Batch, Need, Tokens
from ttc.branch import Branch
from ttc.errors import Unsupported
from ttc.passes.ratings import pass_by_pass
from ttc.sampling import SAMPLED, Sampling
from ttc.step import Step, check_strings
from ttc.task import Passes, Task
from ttc.text.word_tokenizer import WordTokenizer
from ttc.tree.branch import StepEnd, check_live

Kind = Literal["text", "score"]
WAY_OUT = "run it on a ttc.Engine or a server by search.solve"
LACKS: dict[Need, str] = dict.fromkeys(
    ("logprobs", "top_logprobs", "statistics", "score"), f"it is told texts alone; {WAY_OUT}"
)


@dataclass(frozen=True)
class Told:
    """An answer to a trial.

    text: what the branch goes on with, of a trial for a text. scores: of its steps, of a trial for
        a score; of a text, those that its generator gave with it.
    finished: whether the text is over, None to go by its length.
    tokens: how many the answer took, None to count words.
    """

    text: str = ""
    scores: tuple[float, ...] = ()
    finished: bool | None = None
    tokens: int | None = None


NO_STEP = Step(0)
"""Of a score, which asks for no text."""


@dataclass(frozen=True)
class Pending:
    """What is asked: a text of a step, or a score, of a branch."""

    kind: Kind
    branch: Branch
    step: Step = NO_STEP
    sampling: Sampling = SAMPLED

    @property
    def id(self) -> str:
        """The same whenever the same is asked: all ratings of a branch are one."""
        return f"{self.kind} {'.'.join(map(str, self.branch.path))}"


@dataclass
class Desk:
    """What is asked, and what was told.

    open: asked and not told yet. answers: all that were told. unread: those that the search has
    not taken over yet.
    before: what was told before, as a checkpoint has it: where that is asked for, it is told.
    """

    open: dict[str, Pending] = field(default_factory=dict)
    answers: dict[str, Told] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)
    before: dict[str, Told] = field(default_factory=dict)

    def ask(self, work: Pending) -> None:
        """Ask for something; what was told before is told at once."""
        self.open[work.id] = work
        if (answer := self.before.pop(work.id, None)) is not None:
            self.tell(work.id, answer)

    def tell(self, name: str, answer: Told) -> None:
        self.answers[name] = answer
        self.unread[name] = None
        del self.open[name]

    def scored(self, branch: Branch) -> tuple[float, ...]:
        """How a branch's generator, or whoever was asked, has rated it; () for nothing yet."""
        for kind in ("score", "text"):
            answer = self.answers.get(Pending(kind, branch).id)
            if answer is not None and answer.scores:
                return answer.scores
        return ()

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            for kind in ("text", "score"):
                name = Pending(kind, branch).id
                self.open.pop(name, None)
                self.unread.pop(name, None)


class AskedBackend(Backend):
    """Branches that are texts alone, kept here; what they go on with is asked for.

    A token is a word (`WordTokenizer`). `Usage.generated_tokens` counts words too, unless the
    generator says what a text took. Prompt tokens and forward passes are not known and stay 0.
    models: the names of the generators, where there are several.
    """

    tokenizer: WordTokenizer

    def __init__(self, desk: Desk, models: Sequence[str] = ()) -> None:
        self.desk = desk
        self.tokenizer = WordTokenizer()
        self.models = dict.fromkeys(models or ("",), self)

    lacks = LACKS
    writes_ahead = True

    def roots(
        self, prompts: Sequence[Tokens], *, seeds: Sequence[int] | None = None
    ) -> Task[list[Branch]]:
        task = super().roots(prompts, seeds=seeds)
        for root in task.branches:
            root.model = next(iter(self.models))
        return task

    def generate(self, *_: Any, **__: Any) -> None:
        """Refused: a text is asked for between two calls, and a batch alone can wait for it."""
        raise Unsupported(
            "a verifier asks for texts at once, and those of ask_tell come later; give the "
            "verifier a backend of its own, or leave it out and tell the scores"
        )

    def release(self, branches: Iterable[Branch]) -> None:
        branches = list(branches)
        self.desk.forget(branches)
        super().release(branches)

    def running_batch(self, max_rows: int | None = None) -> AskedBatch:
        return AskedBatch(self.desk, self.encode)


class AskedBatch(Batch):
    """Branches whose step is asked for; each ends as soon as its text was told (see
    `Batch`)."""

    def __init__(self, desk: Desk, encode: Callable[[str], list[int]]):
        self.desk, self.encode = desk, encode
        self.works: dict[str, Pending] = {}

    def add(
        self,
        branches: Sequence[Branch],
        step: Step,
        sampling: Sampling = SAMPLED,
        limits: Sequence[int] | None = None,
    ) -> None:
        check_live(branches)
        check_strings("delimiter", step.delimiters)
        check_strings("end", step.end)
        if step.statistics:
            raise Unsupported(f"Step.statistics=True: {LACKS['statistics']}")
        for branch, limit in zip(
            branches, limits or [step.max_tokens] * len(branches), strict=True
        ):
            work = Pending("text", branch, Step(limit, step.delimiters, step.end), sampling)
            self.works[work.id] = work
            self.desk.ask(work)

    def step(self) -> list[Branch]:
        ready = {name: work for name, work in self.works.items() if name in self.desk.unread}
        for name, work in ready.items():
            del self.works[name], self.desk.unread[name]
            self._write(work.branch, work.step, self.desk.answers[name])
        return [work.branch for work in ready.values()]

    def close(self) -> None:
        self.desk.forget([work.branch for work in self.works.values()])
        self.works.clear()

    def __len__(self) -> int:
        return len(self.works)

    def _write(self, branch: Branch, step: Step, answer: Told) -> None:
        text, reason = cut(answer.text, step)
        tokens = self.encode(text)
        if len(tokens) > step.max_tokens:
            tokens, reason = tokens[: step.max_tokens], "length"
        elif reason is None and answer.finished is not False:
            over = answer.finished or len(tokens) < step.max_tokens
            reason = "eos" if over else "length"
        if reason == "eos":
            tokens.append(WordTokenizer.eos_token_id)
        for token in tokens:
            branch.append(token, nan, nan)
        words = len(self.encode(answer.text))
        branch.usage.generated_tokens += words if answer.tokens is None else answer.tokens
        if reason in ("eos", "end"):
            branch.finish_reason = reason
        branch.end_step(reason or "length")


class AskedVerifier:
    """Scores that are asked for, unless a branch's generator has given it one."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[tuple[float, ...]]]:
        fresh = [Pending("score", b) for b in dict.fromkeys(branches) if not self.desk.scored(b)]
        for work in fresh:
            self.desk.ask(work)
        while True:
            for work in fresh:
                self.desk.unread.pop(work.id, None)
            if all(self.desk.scored(branch) for branch in branches):
                break
            yield
        for work in fresh:
            work.branch.usage.verifier_tokens += self.desk.answers[work.id].tokens or 0
        return [self.desk.scored(branch) for branch in branches]


def cut(text: str, step: Step) -> tuple[str, StepEnd | None]:
    """A text up to the first string that ends its step, and which kind that is; a delimiter among
    the blanks at its beginning does not count."""
    blanks = len(text) - len(text.lstrip())
    kinds: list[tuple[StepEnd, Sequence[str], int]] = [
        ("end", step.end, 0),
        ("delimiter", step.delimiters, blanks),
    ]
    places = [
        (at + len(string), reason)
        for reason, strings, start in kinds
        for string in strings
        if (at := text.find(string, start)) >= 0
    ]
    return (text[: min(places)[0]], min(places)[1]) if places else (text, None)
