"""How a data set's answers are read and graded: by its answer_kind, or by a user's functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from experiments.cli.settings import DatasetConfig
from experiments.runs.user_code import find
from search.selection import Candidate, answer_of
from ttc.errors import InvalidInput, refusing
from ttc.origin import at, origin
from ttc.protocols import Extract
from ttc.results import Problem, Result
from ttc.text.answers import extract_answer
from ttc.text.equality import AnswerReader, Same, same_answer

IsCorrect = Callable[[Problem, str | None], bool]
"""Whether an answer to a problem is right. No answer never is."""

REMEMBERED = 4096
"""Pairs of a gold answer and an answer: equal branches ask a slow grader once."""


@dataclass(frozen=True)
class AnswerReading:
    """How answers are read out of texts, and which of them are one answer in a vote.

    kind: the answer_kind. extract: `dataset.extract`, which reads in its place. same:
    `dataset.grader`, which compares in its place. Both raise InvalidInput where they fail.
    """

    kind: str
    extract: Extract | None = None
    same: Same | None = None

    @classmethod
    def of(cls, config: DatasetConfig) -> AnswerReading:
        """Raises InvalidInput for an unknown kind, and for functions that cannot be used."""
        extract_answer("", config.answer_kind)
        return cls(config.answer_kind, user_extract(config.extract), user_grader(config.grader))

    def answer(self, problem: Problem, candidate: Candidate) -> str | None:
        """The answer after the thoughts. Raises InvalidInput where `dataset.extract` fails."""
        return answer_of(candidate, self.voting(problem) if self.extract is None else self.extract)

    def strict(self, result: Result) -> str | None:
        """The answer in the form that is asked for, if there is one."""
        if self.extract is not None or self.kind == "text" or result.best is None:
            return result.answer
        reader = AnswerReader(self.kind, strict=True)
        return answer_of(result.best, reader.among(result.problem.metadata.get("choices")))

    def is_correct(self, problem: Problem, answer: str | None) -> bool:
        """Raises InvalidInput where `dataset.grader` fails. No answer is never right."""
        if answer is None or problem.answer is None:
            return False
        if self.same is not None:
            return self.same(problem.answer, answer)
        return same_answer(problem.answer, answer, self.kind)

    def voting(self, problem: Problem | None = None) -> AnswerReader:
        """What a search reads by. Texts that `dataset.extract` fails on have no answer there, and
        answers that `dataset.grader` fails on differ; the problem fails when its branches are
        graded."""
        if self.extract is not None:
            return AnswerReader(self.kind, extract=self._read, same=self._equal)
        reader = AnswerReader(self.kind, same=None if self.same is None else self._equal)
        return reader if problem is None else reader.among(problem.metadata.get("choices"))

    def options(self) -> dict[str, Any]:
        return {"answer_kind": self.kind, "extract": self.voting()}

    def _read(self, text: str) -> str | None:
        assert self.extract is not None
        try:
            return self.extract(text)
        except InvalidInput:
            return None

    def _equal(self, gold: str, answer: str) -> bool:
        if self.same is None:
            return same_answer(gold, answer, self.kind)
        try:
            return self.same(gold, answer)
        except InvalidInput:
            return False


def user_extract(path: str | None) -> Extract | None:
    """`dataset.extract`, a function (text) -> answer or None, with its errors named after it. It is
    tried on an empty text, which a model may write."""
    if path is None:
        return None
    function = _function(path, "dataset.extract", "(text) -> the answer, or None", ("",))

    def extract(text: str) -> str | None:
        with _named("dataset.extract", path, f"the text {text!r:.60}"):
            answer = function(text)
        if answer is not None and not isinstance(answer, str):
            raise InvalidInput(
                f"dataset.extract={path} gave {answer!r:.60}, of type {type(answer).__name__}, for "
                f"the text {text!r:.60}; return a text, or None where there is no answer"
            )
        return answer

    extract("")
    return extract


def user_grader(path: str | None) -> Same | None:
    """`dataset.grader`, a function (gold, answer) -> bool, with its errors named after it."""
    if path is None:
        return None
    function = _function(path, "dataset.grader", "(gold, answer) -> bool", ("", ""))

    @lru_cache(REMEMBERED)
    def grade(gold: str, answer: str) -> bool:
        values = f"the gold answer {gold!r:.60} and the answer {answer!r:.60}"
        with _named("dataset.grader", path, values):
            verdict = function(gold, answer)
        if type(verdict).__name__ not in ("bool", "bool_"):  # numpy's is a bool as well
            raise InvalidInput(
                f"dataset.grader={path} gave {verdict!r:.60}, of type {type(verdict).__name__}, "
                f"for {values}; return True or False"
            )
        return bool(verdict)

    return grade


def _function(path: str, key: str, what: str, values: tuple[str, ...]) -> Callable[..., Any]:
    if "." not in path:
        raise InvalidInput(f"{key}={path} is no dotted path; give module.function, {what}")
    function: Callable[..., Any] = find(path, key)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C without a signature
        return function
    with refusing(TypeError, f"{key}={path} cannot be called as {what}: {{error}}"):
        signature.bind(*values)
    return function


def _named(key: str, path: str, values: str) -> AbstractContextManager[None]:
    """What a user's function raises is told with its name and what it was given."""

    def reason(error: BaseException) -> str:
        return f"{error}, for {values}{at(origin(error))}"

    raised = f"{key}={path} raised {{kind}}: {{error}}"
    return refusing((Exception, SystemExit), raised, words=reason)
