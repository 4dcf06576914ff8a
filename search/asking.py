"""Searches whose texts and scores come from the caller: ask for trials, tell their outcomes.

The words are those of Optuna and of TreeQuest (Inoue et al., 2025): `ask` gives trials, `tell` says
what came of one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from threading import Event, RLock
from typing import Any, Unpack

from search.admission import ProblemAdmission
from search.asked_backend import AskedBackend, AskedVerifier, Desk, Kind, Pending, Told
from search.base import Search
from search.checkpoint import Checkpoint, described
from search.config import SearchConfig
from search.driver import Driver
from search.options import (
    One,
    SolveKeywords,
    SolveOptions,
    as_problem,
    as_strings,
    check_keywords,
)
from ttc.checks import check_is, check_kind, check_whole
from ttc.errors import InvalidInput, number_of, on_failure, refuse
from ttc.results import Problem, Result
from ttc.sampling import SAMPLED, Sampling
from ttc.task import one_at_a_time
from ttc.text.roles import Message

SEEDS = 2**31
"""Seeds of trials are below it, as those of most generators have to be."""


@dataclass(frozen=True)
class Trial:
    """What a search wants next.

    id: the same whenever this search asks for the same.
    kind: "text", to be told the words that come next, or "score", to be told how good `text` is.
    question: the problem's. text: what the answer has so far; of a score, all that is to be rated.
    messages: the whole conversation as a chat; where `text` is not empty the last message is the
        assistant's and holds it. prompt: the same as one text.
    max_tokens, stop, end, sampling: of a text, how long it may be, the strings at which its step
        ends and those at which the whole answer ends (a text may go on beyond all of these, which
        is cut off), and how the search would have its tokens drawn. seed: a seed for it.
    model: which of `models` is to write the text, or has written it; "" where none were named.
    """

    id: str
    kind: Kind
    question: str
    text: str
    messages: tuple[Message, ...]
    prompt: str
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    sampling: Sampling = SAMPLED
    seed: int = 0
    model: str = ""


class AskTell:
    """A search that waits for what its trials are told. `ask_tell` makes one.

    The order in which trials are told changes nothing. Threads may share it.
    """

    def __init__(
        self,
        search: Search,
        problem: Problem,
        options: SolveOptions,
        checkpoint: str | os.PathLike[str] | None = None,
        models: Sequence[str] = (),
    ):
        self.lock = RLock()
        self._desk = Desk()
        self._ids: set[str] = set()
        self._stopped = Event()
        self._result: Result | None = None
        self._checkpoint = Checkpoint.at(
            checkpoint,
            {
                "search": described(search),
                "problem": described(problem),
                "options": described(options),
                "models": list(models),
            },
        )
        self._desk.before = dict(self._checkpoint.answers)
        verifier = options.verifier
        if verifier is None and search.needs_verifier:
            verifier = AskedVerifier(self._desk)
        backend = AskedBackend(self._desk, models)
        options = replace(options, verifier=verifier, cancel=self._stopped)
        self._driver = Driver(backend, ProblemAdmission.of(backend), strict=True)
        config = SearchConfig.of(search, backend, options)
        self._index = self._driver.add(problem, config)
        self._go_on()
        if left := sorted(self._desk.before):
            raise InvalidInput(
                f"{self._checkpoint.file} holds {number_of(len(left), 'answer')} that the search "
                f"does not ask for, {left[0]!r} among them: its code, or its verifier's scores, "
                "are other ones than they were; delete the file to start over"
            )
        if self._checkpoint.stopped:
            self.stop()

    @property
    def done(self) -> bool:
        """Whether the search has ended, so that `result` has its outcome."""
        return self._result is not None

    @property
    @one_at_a_time
    def open(self) -> list[Trial]:
        """All trials that wait to be told, whether `ask` has given them or not."""
        return [self._trial(work) for work in self._desk.open.values()]

    @one_at_a_time
    def ask(self) -> list[Trial]:
        """The open trials that were not given before."""
        fresh = [trial for trial in self.open if trial.id not in self._ids]
        self._ids.update(trial.id for trial in fresh)
        return fresh

    @one_at_a_time
    def tell(
        self,
        trial: Trial,
        outcome: str | float | Sequence[float],
        *,
        finished: bool | None = None,
        tokens: int | None = None,
        score: float | None = None,
    ) -> bool:
        """Say what came of a trial: of "text" a text, of "score" a number or one for each step,
        where higher is better.

        finished: whether a text is the end of its answer. None takes a text for the end that holds
            none of `trial.stop` and is shorter than `trial.max_tokens` words.
        tokens: how many tokens it took, for usage and budgets; words are counted otherwise, and
            nothing for a score.
        score: of a text, its score, where its generator knows it. It is not asked for then.
        Returns whether it is news: a trial may be told the same twice, and told after `stop`.
        Raises InvalidInput for what does not fit the trial.
        """
        check_is("trial", trial, Trial, "a trial that ask() gave")
        answer = _answer(trial, outcome, finished, tokens, score)
        before = self._desk.answers.get(trial.id)
        is_open = trial.id in self._desk.open
        exists = is_open or before is not None or trial.id in self._ids
        refuse(
            {
                f"trial {trial.id!r} was told {before} before; tell a trial once": (
                    before is not None and before != answer
                ),
                f"trial {trial.id!r} is of another search; tell it to that one": not exists,
            }
        )
        if not is_open:
            return False
        self._desk.tell(trial.id, answer)
        self._go_on()
        self._save()
        return True

    @one_at_a_time
    def stop(self) -> None:
        """End the search with what it has; `Result.stopped` is "cancelled". Open trials are let
        go."""
        self._stopped.set()
        while self._driver.busy:
            self._step()
        self._save()

    def result(self) -> Result:
        """The outcome. Raises InvalidInput while trials are open."""
        if self._result is None:
            raise InvalidInput(
                f"the search waits for {len(self._desk.open)} trials; tell them, or stop() it "
                "with what it has"
            )
        return self._result

    def _go_on(self) -> None:
        """Let the search do all that it can before it is told more."""
        with on_failure(self._driver.close):
            while self._driver.busy and (self._desk.unread or not self._desk.open):
                self._step()

    def _step(self) -> None:
        for _, progress in self._driver.step():
            if progress.result is not None:
                self._result = progress.result

    def _save(self) -> None:
        replace(self._checkpoint, answers=self._desk.answers, stopped=self._stopped.is_set()).save()

    def _trial(self, work: Pending) -> Trial:
        branch, active = work.branch, self._driver.active[self._index]
        template, question, turns, start = active.chats[branch]
        rated = work.kind == "score"
        text = self._driver.engine.decode(branch.tokens[start:])
        chat = list(template.messages(question))
        for place, words in enumerate((*turns, text) if text else turns):
            chat.append({"role": "user" if place % 2 else "assistant", "content": words})
        return Trial(
            work.id,
            work.kind,
            active.problem.question,
            branch.text if rated else text,
            tuple(chat),
            self._driver.engine.decode(branch.tokens),
            work.step.max_tokens,
            work.step.delimiters,
            tuple(work.step.end),
            work.sampling,
            0 if rated else branch.key % SEEDS,
            branch.model,
        )


def ask_tell(
    search: Search,
    *,
    problem: One,
    checkpoint: str | os.PathLike[str] | None = None,
    models: Sequence[str] = (),
    **options: Unpack[SolveKeywords],
) -> AskTell:
    """Run `search` on one problem with texts and scores from the caller, who may have them from an
    API, a person, an agent or a program.

        asking = ask_tell(BestOfN(n=4), problem="What is 17 + 25?")
        while not asking.done:
            for trial in asking.ask():
                asking.tell(trial, write(trial) if trial.kind == "text" else rate(trial))
        print(asking.result().answer)

    verifier: rates texts here; without one, a search that needs scores asks for them. It must read
        texts alone, or have a model of its own.
    checkpoint: a file that every `tell` is written to, in one piece. Where it is there already, the
        search goes on from it: what it was told is told again, a verifier's scores are computed
        again, and trials that were open are given by `ask` again. Raises InvalidInput for the file
        of another search, problem, version or options, with what differs.
    models: the names of your generators, where there are several; `trial.model` says which one is
        asked. A search chooses among them as among engines.
    options: as for `solve`, without `cancel` (see `AskTell.stop`) and `max_wall_s` (a result must
        not depend on how long the caller takes). Tokens are words, unless `tell` says how many
        there were.
    Raises InvalidInput for a search that needs log-probabilities or other statistics.
    """
    check_keywords(ask_tell, options)
    solve_options = SolveOptions.of(**options)
    wall_s = solve_options.budget.max_wall_s
    refuse(
        {
            "ask_tell takes no cancel; call stop() instead": solve_options.cancel is not None,
            f"ask_tell takes no max_wall_s ({wall_s}); call stop() once the time is up": (
                wall_s is not None
            ),
        }
    )
    return AskTell(
        search, as_problem(problem), solve_options, checkpoint, as_strings("models", models)
    )


def _answer(
    trial: Trial,
    outcome: str | float | Sequence[float],
    finished: bool | None,
    tokens: int | None,
    score: float | None,
) -> Told:
    if tokens is not None:
        check_whole("tokens", tokens, 0)
    check_is("finished", finished, bool | None, "True, False or None")
    if trial.kind == "score":
        if finished is not None or score is not None:
            raise InvalidInput("finished and score go with a text; a score is told alone")
        values = (outcome,) if isinstance(outcome, Real) else outcome
        return Told(scores=_scores("the score", values), tokens=tokens)
    check_is("the text", outcome, str, "text, as the trial's kind says")
    if not outcome and finished is False:
        raise InvalidInput("the text is empty and not finished; tell some words, or finished=True")
    scores = () if score is None else _scores("score", (score,))
    return Told(str(outcome), scores, finished, tokens)


def _scores(name: str, value: Any) -> tuple[float, ...]:
    fits = (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(score, Real) for score in value)
    )
    check_kind(name, value, fits, "a number, or one for each step")
    scores = tuple(map(float, value))
    if not scores or not all(map(math.isfinite, scores)):
        raise InvalidInput(f"{name}={value!r} must be finite numbers, one at least")
    return scores
